"""Layers and heads of a request: their forms, and negative numbers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from service.api.native.indices import (
    EncoderHead,
    Head,
    Indices,
    ablated_heads,
    selected_index,
    selected_indices,
)
from service.errors import Unprocessable
from tests.service.harness import CONFIG

LIST: TypeAdapter[list[int] | None] = TypeAdapter(Indices)


@pytest.mark.parametrize("value", [[], "1", 1, [1.0], [True], ["1"], [1, 1], [[1]]])
def test_a_list_has_different_integers(value: Any) -> None:
    with pytest.raises(ValidationError):
        LIST.validate_python(value)
    assert LIST.validate_python([2, -1]) == [2, -1]
    assert LIST.validate_python(None) is None


def test_negative_numbers_count_from_the_end() -> None:
    assert [selected_index("layer", number, 3) for number in range(-3, 3)] == [0, 1, 2] * 2
    assert selected_indices("layers", [2, -3], 3, "") == (2, 0)
    assert selected_indices("layers", None, 3, "") == (0, 1, 2)
    with pytest.raises(Unprocessable, match="layers: 3 is not in -3 … 2 of the decoder"):
        selected_indices("layers", [3], 3, " of the decoder")
    with pytest.raises(Unprocessable, match="layers: one is listed twice"):
        selected_indices("layers", [1, -2], 3, "")


def test_heads_are_of_their_kind() -> None:
    heads = [Head(layer=-1, head=0), Head(layer=0, head=-1, map="cross")]
    assert ablated_heads(heads, "encoder", CONFIG, "") == ((1, 0),)
    assert ablated_heads(heads, "cross", CONFIG, "") == ((0, 1),)
    assert ablated_heads(None, "encoder", CONFIG, "") == ()
    with pytest.raises(ValidationError, match="encoder"):
        EncoderHead.model_validate({"layer": 0, "head": 0, "map": "decoder"})
