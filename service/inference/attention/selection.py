"""Selection of attention maps, and the sizes of maps.

Notation: T query tokens and S key tokens of a map, L layers, N heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from model.artifact.signature import MapKind
from service.engines.contract import Ablated
from service.inference.attention.map_parts import WHOLE, MapPart


class Lengths(NamedTuple):
    """Number of tokens of a text and its target."""

    source: int
    target: int = 0
    """Number of tokens of the target; 0 without a target."""

    def shape(self, kind: MapKind) -> tuple[int, int]:
        """Return the number of queries and keys of a map."""
        return (
            self.source if kind == "encoder" else self.target,
            self.target if kind == "decoder" else self.source,
        )


@dataclass(frozen=True)
class TargetSelection:
    """Selection of a decoder's maps and log-probabilities; indices as in `AttentionSelection`."""

    maps: tuple[MapKind, ...]
    """Kinds of maps: decoder self-attention, cross-attention, both or none."""
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    logprobs: bool
    """Whether to return the log-probability of each target token."""
    ablated: Ablated = ()
    cross_ablated: Ablated = ()


@dataclass(frozen=True)
class AttentionSelection:
    """Selection of maps, with valid non-negative indices."""

    layers: tuple[int, ...]
    """Layers of the encoder; empty, like `heads`, if its maps are not requested."""
    heads: tuple[int, ...]
    weights: bool
    statistics: bool
    rollout: bool
    top_k: int | None
    """Number of largest weights of each query to keep; None for all weights."""
    ablated: Ablated
    """Heads of the encoder whose output is set to zero, as (layer, head)."""
    target: TargetSelection | None = None
    """Selection for the decoder, if texts have targets."""
    norms: bool = False
    """Whether to return the norms of the selected heads' contributions."""
    norm_rollout: bool = False
    part: MapPart = WHOLE
    """Part of weights and norms; with `top_k`, only its queries apply."""

    @property
    def only_weights(self) -> bool:
        """Whether only whole maps are requested."""
        others = self.statistics or self.rollout or self.ablates or self.top_k or self.of_values
        return self.weights and not (others or (self.target and self.target.logprobs))

    @property
    def of_values(self) -> bool:
        """Whether requested arrays depend on values in addition to maps."""
        return self.norms or self.norm_rollout

    @property
    def ablates(self) -> bool:
        """Whether a head of any kind is ablated."""
        target = self.target
        return bool(self.ablated or (target and (target.ablated or target.cross_ablated)))

    @property
    def of_kinds(self) -> dict[MapKind, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Layers and heads of each requested kind of maps, in the order of a reply."""
        kinds: dict[MapKind, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        if self.layers:
            kinds["encoder"] = self.layers, self.heads
        if target := self.target:
            kinds |= dict.fromkeys(target.maps, (target.layers, target.heads))
        return kinds
