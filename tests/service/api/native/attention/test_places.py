"""Places of a request: numbers, patches and names of special tokens."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from model.config.encoder import PatchLayout
from service.api.native.attention.places import token_numbers
from service.api.native.attention.selection import AttentionRequest
from service.errors import Unprocessable

LAYOUT = PatchLayout(size=4, rows=2, columns=3, special_tokens=("[CLS]", "[REG 1]"))


def places(value: Any) -> Any:
    return AttentionRequest.model_validate({"inputs": "a", "queries": value}).queries


def test_patches_follow_the_special_tokens_row_by_row() -> None:
    asked = places(["[CLS]", "[REG 1]", [0, 0], [0, 2], [1, 0], [-1, -1], 3, -2])
    assert token_numbers("queries", asked, LAYOUT) == (0, 1, 2, 4, 5, 7, 3, -2)
    assert token_numbers("keys", None, LAYOUT) is None
    assert token_numbers("keys", [4, -1], None) == (4, -1)


@pytest.mark.parametrize(
    ("value", "layout", "says"),
    [
        ([[2, 0]], LAYOUT, "queries: row 2 is not in -2 … 1, the rows of a picture"),
        ([[0, -4]], LAYOUT, "queries: column -4 is not in -3 … 2, the columns of a picture"),
        (["CLS"], LAYOUT, "queries: the special tokens of a picture are [CLS], [REG 1]"),
        (["[CLS]"], LAYOUT.model_copy(update={"special_tokens": ()}), "none: give [row, column]"),
        ([[0, 0]], None, "queries: names and [row, column] are for pictures; give the numbers"),
        (["[CLS]"], None, "queries: names and [row, column] are for pictures"),
    ],
)
def test_places_that_do_not_exist(value: Any, layout: PatchLayout | None, says: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        token_numbers("queries", places(value), layout)
    assert says in str(refused.value)


@pytest.mark.parametrize("value", [[], 3, [[1]], [[1, True]], [1.5], [None], [[0, 1], [0, 1]]])
def test_values_that_are_no_places(value: Any) -> None:
    with pytest.raises(ValidationError):
        places(value)
