"""The parts of attention maps that a caller wants, and the sizes of maps.

Notation: T query tokens and S key tokens of a map, L layers, N heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from model.artifact.signature import MapKind
from service.engines.contract import Ablated
from service.inference.attention.map_parts import WHOLE, MapPart


class Lengths(NamedTuple):
    """Tokens of a text."""

    source: int
    target: int = 0
    """0 without a target."""

    def shape(self, kind: MapKind) -> tuple[int, int]:
        """Queries and keys of a map."""
        return (
            self.source if kind == "encoder" else self.target,
            self.target if kind == "decoder" else self.source,
        )


@dataclass(frozen=True)
class TargetSelection:
    """The parts of a decoder that a caller wants; indices as in `AttentionSelection`."""

    maps: tuple[MapKind, ...]
    """The decoder's own maps, those of cross-attention, both or none."""
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    logprobs: bool
    """Whether the log-probability of each of the target's tokens is wanted."""
    ablated: Ablated = ()
    cross_ablated: Ablated = ()


@dataclass(frozen=True)
class AttentionSelection:
    """The parts of the maps that a caller wants; no index is negative, and all are in range."""

    layers: tuple[int, ...]
    """Of the encoder; none where its maps are not wanted, as its heads."""
    heads: tuple[int, ...]
    weights: bool
    statistics: bool
    rollout: bool
    top_k: int | None
    """Largest weights of each query that are kept; all weights when None."""
    ablated: Ablated
    """(layer, head) of each head of the encoder whose output is multiplied by zero."""
    target: TargetSelection | None = None
    """Of texts with targets."""
    norms: bool = False
    """Whether the norms of what each of these heads adds are wanted."""
    norm_rollout: bool = False
    part: MapPart = WHOLE
    """Of weights and norms; of the largest weights of each query its queries alone."""

    @property
    def only_weights(self) -> bool:
        """Whether whole maps are wanted, and nothing else."""
        others = self.statistics or self.rollout or self.ablates or self.top_k or self.of_values
        return self.weights and not (others or (self.target and self.target.logprobs))

    @property
    def of_values(self) -> bool:
        """Whether something is wanted that does not follow from the maps alone."""
        return self.norms or self.norm_rollout

    @property
    def ablates(self) -> bool:
        """Whether a head of any kind is ablated."""
        target = self.target
        return bool(self.ablated or (target and (target.ablated or target.cross_ablated)))

    @property
    def of_kinds(self) -> dict[MapKind, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Layers and heads of each kind of map that is wanted, in the order of a reply."""
        found: dict[MapKind, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        if self.layers:
            found["encoder"] = self.layers, self.heads
        if target := self.target:
            found |= dict.fromkeys(target.maps, (target.layers, target.heads))
        return found
