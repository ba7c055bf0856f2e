"""Pairs of texts in requests: valid pairs, and the errors of invalid ones."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from service.api.native.pairs import PAIRS, pairs_schema

ADAPTER: TypeAdapter[list[tuple[str, str]]] = TypeAdapter(
    Annotated[list[tuple[str, str]], PAIRS, pairs_schema("one", "other")]
)


def test_pairs_and_their_schema() -> None:
    assert ADAPTER.validate_python([["a", ""], ["b", "c"]]) == [("a", ""), ("b", "c")]
    schema = ADAPTER.json_schema()
    assert schema["items"]["minItems"] == schema["items"]["maxItems"] == 2
    assert schema["examples"] == [[["one", "other"]]]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("a", "at least one pair"),
        ([], "at least one pair"),
        (["ab"], r"inputs\[0\] is no pair"),
        ([["a", "b"], ["a"]], r"inputs\[1\] is no pair"),
        ([["a", "b", "c"]], r"inputs\[0\] is no pair"),
        ([["a", 1]], r"inputs\[0\] is no pair"),
        ([{"a": "b"}], r"inputs\[0\] is no pair"),
    ],
    ids=str,
)
def test_what_is_no_pair(value: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ADAPTER.validate_python(value)
