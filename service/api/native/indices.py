"""Layers and heads as requests name them: 0 … n−1, negative from the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.api.native.texts import StrictRequest, no_duplicates
from service.engines.contract import Ablated
from service.errors import Unprocessable

T = TypeVar("T")


def _indices(value: Any) -> list[int] | None:
    """A list of integers, none twice; stops at the first thing that is not one."""
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("indices", "a list with at least one integer is needed")
    for item in value:
        if type(item) is not int:
            raise PydanticCustomError("indices", "a list of integers is needed")
    return no_duplicates(value)


Indices = Annotated[
    list[int] | None,
    PlainValidator(_indices),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "integer"},
                    "minItems": 1,
                    "uniqueItems": True,
                },
                {"type": "null"},
            ]
        }
    ),
]


class Head(StrictRequest):
    """A head of a layer; negative numbers count from the end."""

    layer: int
    head: int
    map: MapKind = Field(
        "encoder", description="Whose: the encoder's, the decoder's own, or of cross-attention."
    )


class EncoderHead(StrictRequest):
    """A head of a layer of the encoder; negative numbers count from the end."""

    layer: int
    head: int
    map: Literal["encoder"] = Field("encoder", description="Whose: the encoder's, as no other is.")


AnyHead = TypeVar("AnyHead", Head, EncoderHead)
Ablate = Annotated[list[AnyHead], Field(min_length=1, max_length=4096)] | None


def ablated_heads(
    asked: Sequence[Head] | Sequence[EncoderHead] | None,
    kind: MapKind,
    config: EncoderConfig,
    whose: str,
) -> Ablated:
    """The heads of a kind whose output is zeroed, their numbers counted from the first.

    Raises:
        Unprocessable: a layer or head that there is not, or one listed twice.

    """
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    found = tuple(
        (
            selected_index("ablate: layer", one.layer, layers, whose),
            selected_index("ablate: head", one.head, heads, whose),
        )
        for one in asked or ()
        if one.map == kind
    )
    return _distinct("ablate", found)


def selected_indices(
    name: str, asked: Sequence[int] | None, size: int, whose: str
) -> tuple[int, ...]:
    """Negative ones counted from the end; in the order asked."""
    if asked is None:
        return tuple(range(size))
    return _distinct(name, tuple(selected_index(name, index, size, whose) for index in asked))


def selected_index(name: str, index: int, size: int, whose: str = "") -> int:
    """Negative ones counted from the end.

    Raises:
        Unprocessable: there is none.

    """
    if not -size <= index < size:
        raise Unprocessable(f"{name}: {index} is not in {-size} … {size - 1}{whose}")
    return index % size


def _distinct(name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise Unprocessable(f"{name}: one is listed twice (negative ones count from the end)")
    return values
