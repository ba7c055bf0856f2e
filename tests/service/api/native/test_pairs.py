"""Pairs of texts in requests: valid pairs, and the errors of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from service.api.native.pairs import Sides
from service.inference.tokenization.inputs import Input

PICTURE = {"image": "aGk="}
SIDES: TypeAdapter[list[Input]] = TypeAdapter(Sides)


def test_sides_of_pairs_are_texts_or_pictures() -> None:
    first, second, *others = SIDES.validate_python([["a", PICTURE], [{"text": "b"}, PICTURE]])
    assert (first, others[0]) == ("a", "b")
    assert [getattr(side, "field", None) for side in (second, others[1])] == [
        "inputs[0][1].image",
        "inputs[1][1].image",
    ]
    assert SIDES.validate_python([["a", ""]]) == ["a", ""]
    assert SIDES.json_schema()["items"]["minItems"] == 2


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "at least one pair of texts or pictures"),
        ([["a"]], r"inputs\[0\] is no pair of texts or pictures"),
        ([["a", 1]], r"inputs\[0\] is no pair"),
        ([["a", PICTURE], ["a", "b"]], r"inputs\[1\]\[1\] and inputs\[0\]\[1\] are a text and a"),
        ([["a", {"audio": "x"}]], r"inputs\[0\]\[1\] is neither a text nor a picture"),
    ],
    ids=str,
)
def test_what_is_no_pair_of_sides(value: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        SIDES.validate_python(value)
