"""Pairs of a request, of which each text or picture is encoded by itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from service.api.native.inputs import OBJECTS, TEXT
from service.api.wire.pictures import element
from service.inference.tokenization.inputs import Input, Picture


def _sides(value: object) -> list[Input]:
    """Validate pairs of texts and pictures, up to the first invalid item.

    All first items of the pairs are texts or all are pictures, and so are all second items.

    Returns:
        First and second item of each pair, in turn.

    """
    if not isinstance(value, list) or not value:
        raise PydanticCustomError(
            "inputs", "a list with at least one pair of texts or pictures is needed"
        )
    sides: list[Input] = []
    for index, pair in enumerate(value):
        match pair:
            case [str() | dict() as first, str() | dict() as second]:
                sides += [_side(first, index, 0), _side(second, index, 1)]
            case _:
                raise PydanticCustomError(
                    "inputs", "inputs[{index}] is no pair of texts or pictures", {"index": index}
                )
        for side in (0, 1):
            if isinstance(sides[side - 2], Picture) != isinstance(sides[side], Picture):
                raise PydanticCustomError(
                    "inputs",
                    "inputs[{index}][{side}] and inputs[0][{side}] are a text and a picture: send "
                    "pairs of each kind in requests of their own",
                    {"index": index, "side": side},
                )
    return sides


def _side(value: str | dict[str, object], index: int, side: int) -> Input:
    return value if isinstance(value, str) else element(value, f"inputs[{index}][{side}]")


_ITEM = {"anyOf": [TEXT, *OBJECTS]}
Sides = Annotated[
    list[Input],
    PlainValidator(_sides),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "array", "items": _ITEM, "minItems": 2, "maxItems": 2},
            "minItems": 1,
            "title": "Inputs",
            "examples": [[["A man is playing a guitar.", "Someone plays an instrument."]]],
        }
    ),
]
