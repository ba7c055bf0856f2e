"""Layers, heads and sizes as a request names them, held against the encoder that is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from model.config import EncoderConfig
from service.api.native.requests import AttentionRequest
from service.errors import Unprocessable
from service.inference.maps import MapsAsked

T = TypeVar("T")


def hidden_layer(layer: int, config: EncoderConfig) -> int:
    """A hidden state, 0 … L, counted from the end if negative.

    Raises:
        Unprocessable: there is none.

    """
    states = config.num_hidden_layers + 1
    if not -states <= layer < states:
        raise Unprocessable(f"layer {layer} is not in {-states} … {states - 1}")
    return layer % states


def vector_size(dimensions: int | None, config: EncoderConfig) -> int:
    """How many of a vector's dimensions are kept.

    Raises:
        Unprocessable: more than there are.

    """
    size = config.hidden_size
    if dimensions is not None and dimensions > size:
        raise Unprocessable(f"dimensions {dimensions} is more than the model's {size}")
    return dimensions or size


def maps_asked(request: AttentionRequest, config: EncoderConfig) -> MapsAsked:
    """What a request asks of the maps.

    Raises:
        Unprocessable: a layer or head that there is not, one named twice, or `top_k` of nothing.

    """
    weights = "weights" in request.include
    if request.top_k is not None and not weights:
        raise Unprocessable("top_k is of the weights, which `include` leaves out")
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    ablated = tuple(
        (_index("ablate: layer", one.layer, layers), _index("ablate: head", one.head, heads))
        for one in request.ablate or ()
    )
    return MapsAsked(
        layers=_indices("layers", request.layers, layers),
        heads=_indices("heads", request.heads, heads),
        weights=weights,
        statistics="stats" in request.include,
        rollout="rollout" in request.include,
        top_k=request.top_k,
        ablated=_no_duplicates("ablate", ablated),
        half=request.dtype == "float16",
    )


def _indices(name: str, asked: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Negative ones counted from the end; in the order asked."""
    if asked is None:
        return tuple(range(size))
    return _no_duplicates(name, tuple(_index(name, index, size) for index in asked))


def _index(name: str, index: int, size: int) -> int:
    if not -size <= index < size:
        raise Unprocessable(f"{name}: {index} is not in {-size} … {size - 1}")
    return index % size


def _no_duplicates(name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) != len(values):
        raise Unprocessable(f"{name}: one is listed twice (negative ones count from the end)")
    return values
