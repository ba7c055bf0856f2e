"""Pairs of texts in a request, each of which is encoded as two texts."""

from __future__ import annotations

from typing import Any

from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError


def _pairs(value: Any) -> list[tuple[str, str]]:
    """`[[str, str]]` → a list of pairs; stops at the first thing that is none."""
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("inputs", "a list with at least one pair of texts is needed")
    pairs = []
    for index, pair in enumerate(value):
        match pair:
            case [str(one), str(other)]:
                pairs.append((one, other))
            case _:
                raise PydanticCustomError(
                    "inputs", "inputs[{index}] is no pair of texts", {"index": index}
                )
    return pairs


PAIRS = PlainValidator(_pairs)
"""Validator of a list of pairs, of which there is one at least."""


def pairs_schema(one: str, other: str) -> WithJsonSchema:
    """The schema of such a list, with an example."""
    return WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
            "minItems": 1,
            "title": "Inputs",
            "examples": [[[one, other]]],
        }
    )
