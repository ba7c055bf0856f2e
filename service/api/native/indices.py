"""Indices of layers and heads in requests: 0 … n−1, negative from the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field
from pydantic.json_schema import WithJsonSchema

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.api.requests import StrictRequest, distinct, list_of
from service.api.wire.pictures import wrong
from service.api.wire.schemas import schema
from service.engines.contract import Ablated
from service.errors import Unprocessable
from service.inference.attention.maps import LayersAndHeads

T = TypeVar("T")


def _index(value: object, _: int) -> int:
    if type(value) is not int:
        raise wrong("a list of integers is needed")
    return value


INDEX_LIST = schema([int, ...], uniqueItems=True)
"""JSON schema of a list of distinct integers."""
Indices = Annotated[
    list[int],
    list_of(_index, "a list with at least one integer is needed"),
    AfterValidator(distinct),
    WithJsonSchema(INDEX_LIST),
]


class Head(StrictRequest):
    """Head of a layer; negative indices count from the end."""

    layer: int
    head: int
    map: MapKind = Field("encoder", description="Attention of the head: encoder, decoder or cross.")


class EncoderHead(StrictRequest):
    """Head of a layer of the encoder; negative indices count from the end."""

    layer: int
    head: int
    map: Literal["encoder"] = Field("encoder", description="Only the encoder's heads.")


AnyHead = TypeVar("AnyHead", Head, EncoderHead)
Ablate = Annotated[list[AnyHead], Field(min_length=1, max_length=4096)] | None


def ablated_heads(
    asked: Sequence[Head] | Sequence[EncoderHead] | None,
    kind: MapKind,
    config: EncoderConfig,
    whose: str,
) -> Ablated:
    """Return the ablated heads of a kind of maps, as non-negative layer and head indices."""
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    ablated = tuple(
        (
            selected_index("ablate: layer", head.layer, layers, whose),
            selected_index("ablate: head", head.head, heads, whose),
        )
        for head in asked or ()
        if head.map == kind
    )
    return _distinct("ablate", ablated)


def selected_indices(
    name: str, asked: Sequence[int] | None, size: int, whose: str
) -> tuple[int, ...]:
    """Return the requested indices, non-negative and in order; all without a request."""
    if asked is None:
        return tuple(range(size))
    return _distinct(name, tuple(selected_index(name, index, size, whose) for index in asked))


def selected_heads(
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    config: EncoderConfig,
    whose: str = "",
) -> LayersAndHeads:
    """Return the requested layers and heads of a stack, like `selected_indices`."""
    return (
        selected_indices("layers", layers, config.num_hidden_layers, whose),
        selected_indices("heads", heads, config.num_attention_heads, whose),
    )


def selected_index(name: str, index: int, size: int, whose: str = "") -> int:
    """Return an index as a non-negative number; negative indices count from the end."""
    if not -size <= index < size:
        raise Unprocessable(f"{name}: {index} is not in {-size} … {size - 1}{whose}")
    return index % size


def _distinct(name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise Unprocessable(f"{name}: one is listed twice (negative ones count from the end)")
    return values
