"""Indices of layers and heads in requests: 0 … n−1, negative from the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.api.native.texts import StrictRequest, no_duplicates
from service.engines.contract import Ablated
from service.errors import Unprocessable
from service.inference.attention.selection import LayersAndHeads
from service.inference.encoding import HeadPatch

T = TypeVar("T")


def _indices(value: object) -> list[int] | None:
    """Validate a list of distinct integers, up to its first invalid item."""
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("indices", "a list with at least one integer is needed")
    for item in value:
        if type(item) is not int:
            raise PydanticCustomError("indices", "a list of integers is needed")
    return no_duplicates(value)


INDEX_LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}
"""JSON schema of a list of distinct integers."""
Indices = Annotated[
    list[int] | None,
    PlainValidator(_indices),
    WithJsonSchema({"anyOf": [INDEX_LIST, {"type": "null"}]}),
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
    """Return the ablated heads of a kind of maps, as non-negative layer and head indices.

    Raises:
        Unprocessable: a layer or head does not exist, or a head is listed twice.

    """
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


class Patch(StrictRequest):
    """Head whose output in one text is replaced by its output in another, token by token."""

    layer: int
    head: int
    source: int = Field(alias="from", description="Index of the input whose output is used.")
    to: int | None = Field(None, description="Index of the patched input; all others by default.")


def head_patches(
    asked: Sequence[Patch] | None, inputs: int, config: EncoderConfig, ablated: Ablated
) -> tuple[HeadPatch, ...]:
    """Return a patch for each head and text, with non-negative indices.

    Raises:
        Unprocessable: a layer, head or input does not exist, there is no other input, or a head is
            patched twice in one text or also ablated.

    """
    patches: dict[tuple[int, int, int], HeadPatch] = {}
    for patch in asked or ():
        layer = selected_index("patch: layer", patch.layer, config.num_hidden_layers)
        head = selected_index("patch: head", patch.head, config.num_attention_heads)
        source = selected_index("patch: from", patch.source, inputs, " of the inputs")
        if (layer, head) in ablated:
            raise Unprocessable(f"patch: head {head} of layer {layer} is in `ablate` too")
        texts: Sequence[int] = [text for text in range(inputs) if text != source]
        if patch.to is not None:
            texts = [selected_index("patch: to", patch.to, inputs, " of the inputs")]
        if not texts:
            raise Unprocessable("patch: there is one input alone: send the text to change as well")
        for text in texts:
            if (layer, head, text) in patches:
                raise Unprocessable(
                    f"patch: head {head} of layer {layer} is replaced twice in inputs[{text}]"
                )
            patches[layer, head, text] = HeadPatch(layer, head, source, text)
    return tuple(patches.values())


def selected_indices(
    name: str, asked: Sequence[int] | None, size: int, whose: str
) -> tuple[int, ...]:
    """Return the requested indices, non-negative and in order; all without a request.

    Raises:
        Unprocessable: an index does not exist or is listed twice.

    """
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
    """Return an index as a non-negative number; negative indices count from the end.

    Raises:
        Unprocessable: the index is out of range.

    """
    if not -size <= index < size:
        raise Unprocessable(f"{name}: {index} is not in {-size} … {size - 1}{whose}")
    return index % size


def _distinct(name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise Unprocessable(f"{name}: one is listed twice (negative ones count from the end)")
    return values
