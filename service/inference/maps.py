"""What is asked of attention maps, and what is taken from a layer's maps where they are computed.

Notation: S tokens of a text, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from model.config import EncoderConfig
from service.api.safetensors import float16_weights
from service.engines.contract import Floats, Output
from service.inference.statistics import statistics, top_k

Part = bytes | memoryview


@dataclass(frozen=True)
class MapsAsked:
    """What a request asks of the maps; its indices are in range, and none is negative."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    weights: bool
    statistics: bool
    rollout: bool
    top_k: int | None
    ablated: tuple[tuple[int, int], ...]
    half: bool
    """Weights are float16."""

    @property
    def only_weights(self) -> bool:
        """Nothing but whole maps."""
        others = self.statistics or self.rollout or self.ablated or self.top_k
        return self.weights and not others


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of a layer's maps of a text; what was not asked for is None."""

    weights: Part | None
    top: tuple[Part, Part] | None
    """Indices and values."""
    statistics: dict[str, Floats] | None
    """Name → `[heads]`."""
    mean: Floats | None
    """Over all heads, `[S, S]`."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of a text once all its maps are."""

    statistics: dict[str, Floats]
    """Name → `[layers, heads]`; empty if they were not asked for."""
    rollout: Floats | None
    """`[S, S]`."""
    pooled_shift: float | None


class Writer(Protocol):
    """Turns what is kept into the parts of a reply, in order."""

    def dump(self, array: Any) -> Part:
        """An array as it will be sent; called in a worker's thread."""

    def start(self) -> list[Part]:
        """What comes before the first text."""

    def layer(self, index: int, kept: Kept) -> list[Part]:
        """The next of the asked layers of text `index`."""

    def text(self, index: int, ending: Ending) -> list[Part]:
        """Text `index` is complete."""

    def end(self) -> list[Part]:
        """So are all."""


@dataclass(frozen=True)
class Visit:
    """One visit to a layer of a text."""

    layer: int
    heads: tuple[int, ...]
    asked: bool
    """Whether what the request asks of its layers is taken here."""
    mean: bool
    """Whether the rollout's share is."""


def visits_of(asked: MapsAsked, config: EncoderConfig) -> list[Visit]:
    """The visits that answer a request: its own layers in its order, and all for the rollout.

    One visit serves both where the request's own are all layers and heads in their order.
    """
    layers = tuple(range(config.num_hidden_layers))
    heads = tuple(range(config.num_attention_heads))
    own = asked.weights or asked.statistics
    shared = asked.rollout and own and (asked.layers, asked.heads) == (layers, heads)
    visits = [Visit(n, asked.heads, asked=True, mean=shared) for n in asked.layers] if own else []
    if asked.rollout and not shared:
        visits += [Visit(n, heads, asked=False, mean=True) for n in layers]
    return visits


def reduce_maps(
    asked: MapsAsked, visit: Visit, separators: Sequence[int], writer: Writer, output: Output
) -> Kept:
    """Take from a layer's maps what is asked; in the thread that computed them."""
    maps = output.maps
    assert maps is not None  # noqa: S101 - the batcher has checked every output
    weights, top = None, None
    if visit.asked and asked.weights:
        if asked.top_k is None:
            weights = writer.dump(float16_weights(maps) if asked.half else maps)
        else:
            indices, values = top_k(maps, asked.top_k)
            kept = float16_weights(values) if asked.half else values
            top = writer.dump(indices), writer.dump(kept)
    return Kept(
        weights,
        top,
        statistics(maps, separators) if visit.asked and asked.statistics else None,
        maps.mean(axis=0) if visit.mean else None,
    )
