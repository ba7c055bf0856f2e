"""Pairs of texts in a request; each text of a pair is encoded by itself."""

from __future__ import annotations

from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError


def _pairs(value: object) -> list[tuple[str, str]]:
    """Validate `[[str, str], …]` as a list of pairs, up to its first invalid item."""
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("inputs", "a list with at least one pair of texts is needed")
    pairs = []
    for index, pair in enumerate(value):
        match pair:
            case [str(first), str(second)]:
                pairs.append((first, second))
            case _:
                raise PydanticCustomError(
                    "inputs", "inputs[{index}] is no pair of texts", {"index": index}
                )
    return pairs


PAIRS = PlainValidator(_pairs)
"""Validator of a list of at least one pair."""


def pairs_schema(first: str, second: str) -> WithJsonSchema:
    """Return the JSON schema of a list of pairs, with an example pair."""
    return WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
            "minItems": 1,
            "title": "Inputs",
            "examples": [[[first, second]]],
        }
    )
