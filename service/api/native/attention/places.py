"""Queries and keys of a request: numbers of tokens, patches and special tokens of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from model.config.encoder import PatchLayout
from service.api.native.texts import no_duplicates
from service.errors import Unprocessable

Place: TypeAlias = int | str | tuple[int, int]
"""Number of a token, name of a special token, or row and column of a patch."""


def _places(value: object) -> list[Place] | None:
    """Validate a list of distinct places, up to its first invalid item."""
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("places", "a list with at least one token is needed")
    return no_duplicates([_place(item) for item in value])


def _place(item: object) -> Place:
    if type(item) is int or isinstance(item, str):
        return item
    if isinstance(item, list) and len(item) == 2:
        row, column = item
        if type(row) is type(column) is int:
            return row, column
    raise PydanticCustomError(
        "places",
        "a token is an integer, and of a picture also [row, column] or a special token's name",
    )


_INTEGER = {"type": "integer"}
_PATCH = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2}
Places = Annotated[
    list[Place] | None,
    PlainValidator(_places),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"anyOf": [_INTEGER, _PATCH, {"type": "string"}]},
                    "minItems": 1,
                    "uniqueItems": True,
                },
                {"type": "null"},
            ]
        }
    ),
]


def token_numbers(
    name: str, places: Sequence[Place] | None, patches: PatchLayout | None
) -> tuple[int, ...] | None:
    """Return places as numbers of tokens; numbers themselves are unchanged.

    Args:
        name: field of the request.
        places: the places of the field; None for all.
        patches: layout of the model's pictures; None for a model of texts.

    """
    if places is None:
        return None
    return tuple(
        place if isinstance(place, int) else _of_picture(name, place, patches) for place in places
    )


def _of_picture(name: str, place: str | tuple[int, int], patches: PatchLayout | None) -> int:
    """Return the number of a special token or a patch; rows and columns may be negative."""
    if patches is None:
        raise Unprocessable(
            f"{name}: names and [row, column] are for pictures; give the numbers of the text's "
            "tokens"
        )
    names = patches.special_tokens
    if isinstance(place, str):
        if place not in names:
            listed = ", ".join(names) or "none: give [row, column]"
            raise Unprocessable(f"{name}: the special tokens of a picture are {listed}")
        return names.index(place)
    grid = patches.rows, patches.columns
    for axis, number, size in zip(("row", "column"), place, grid, strict=True):
        if not -size <= number < size:
            raise Unprocessable(
                f"{name}: {axis} {number} is not in {-size} … {size - 1}, the {axis}s of a picture"
            )
    row, column = (number % size for number, size in zip(place, grid, strict=True))
    return len(names) + row * patches.columns + column
