"""The wanted parts of attention maps, and how they are taken from a layer's maps.

Notation: T query tokens and S key tokens of a text, L layers, N heads, k = min(top_k, S). Of a text
with a target, S are the text's tokens and T the target's.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from model.artifact.signature import MapKind
from model.config import EncoderConfig
from service.engines.contract import Ablated, Floats, Output
from service.inference.norms import head_norms, norm_shares
from service.inference.statistics import (
    CROSS_STATISTICS,
    STATISTICS,
    rollout_step,
    statistics,
    top_k,
)

STATISTICS_OF: Mapping[MapKind, tuple[str, ...]] = {
    "encoder": STATISTICS,
    "decoder": STATISTICS,
    "cross": CROSS_STATISTICS,
}
Convert = Callable[[Any], Any]
"""A function of one array of weights or indices, which runs in the thread that computed it."""


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
    """Whether the norms of what each of these heads of the encoder adds are wanted."""
    norm_rollout: bool = False

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


@dataclass(frozen=True, slots=True)
class LayerMaps:
    """The wanted parts of one layer's maps of one text; None where not wanted."""

    text: int
    """Index of the text among the request's."""
    weights: Any | None
    """Converted `[heads, T, S]`."""
    top: tuple[Any, Any] | None
    """Converted indices and values, `[heads, T, k]` each."""
    statistics: dict[str, Floats] | None
    """Name → `[heads]`."""
    mean: Floats | None
    """Over all heads, `[T, S]`."""
    kind: MapKind = "encoder"
    norms: Any | None = None
    """Converted `[heads, S, S]`."""
    shares: Floats | None = None
    """`norm_shares` of all heads, `[S, S]`."""


@dataclass(frozen=True, slots=True)
class TextSummary:
    """The results of one text that span its layers."""

    text: int
    """Index of the text among the request's."""
    statistics: dict[MapKind, dict[str, Floats]]
    """Name → `[layers, heads]` of each kind of map; empty if not wanted."""
    rollout: Floats | None
    """`[S, S]`."""
    pooled_shift: float | None
    """1 − cosine of the pooled vectors with and without the ablation."""
    logprob_shift: float | None = None
    """Mean log-probability of the target's tokens with the ablation, minus without."""
    logprobs: Floats | None = None
    """Log-probability of each of the target's tokens, `[T]`."""
    norm_rollout: Floats | None = None
    """`[S, S]`."""


class LayerResults:
    """What the layers of one text leave for its summary."""

    def __init__(self) -> None:
        self._statistics: dict[MapKind, dict[str, list[Floats]]] = {}
        self._rollout: Floats | None = None
        self._norm_rollout: Floats | None = None

    async def add(self, maps: LayerMaps) -> None:
        """Count a layer in."""
        for name, values in (maps.statistics or {}).items():
            self._statistics.setdefault(maps.kind, {}).setdefault(name, []).append(values)
        if maps.mean is not None:
            self._rollout = await asyncio.to_thread(rollout_step, self._rollout, maps.mean[None])
        if maps.shares is not None:
            step = self._norm_rollout, maps.shares[None]
            self._norm_rollout = await asyncio.to_thread(rollout_step, *step)

    def complete(self, summary: TextSummary) -> TextSummary:
        """A text's summary with what is of all layers."""
        stacked = {
            kind: {name: np.stack(values) for name, values in found.items()}
            for kind, found in self._statistics.items()
        }
        return dataclasses.replace(
            summary, statistics=stacked, rollout=self._rollout, norm_rollout=self._norm_rollout
        )


@dataclass(frozen=True)
class LayerPass:
    """One computation of a layer's maps of a text."""

    layer: int
    heads: tuple[int, ...]
    selected: bool
    """Whether the selection's weights and statistics are taken from it."""
    rollout: bool
    """Whether the rollout's mean over all heads is."""
    kind: MapKind = "encoder"
    norms: bool = False
    """Whether the selection's norms are."""
    norm_rollout: bool = False
    """Whether the norm rollout's shares of all heads are."""

    @property
    def values(self) -> bool:
        """Whether it needs what the heads' values are, beside the maps."""
        return self.norms or self.norm_rollout


def layer_passes(selection: AttentionSelection, config: EncoderConfig) -> list[LayerPass]:
    """The passes that answer a selection: its own layers in its order, and all for the rollout.

    Rollouts and norms are the encoder's. One pass serves both where the selection is of all its
    layers and heads in their order.
    """
    layers = tuple(range(config.num_hidden_layers))
    heads = tuple(range(config.num_attention_heads))
    maps = selection.weights or selection.statistics
    shared = (maps or selection.norms) and (selection.layers, selection.heads) == (layers, heads)
    passes = []
    for kind, (of_kind, asked) in selection.of_kinds.items():
        encoder = kind == "encoder"
        norms = selection.norms and encoder
        if maps or norms:
            passes += [
                LayerPass(
                    layer,
                    asked,
                    selected=maps,
                    rollout=shared and encoder and selection.rollout,
                    kind=kind,
                    norms=norms,
                    norm_rollout=shared and encoder and selection.norm_rollout,
                )
                for layer in of_kind
            ]
    if (selection.rollout or selection.norm_rollout) and not shared:
        passes += [
            LayerPass(
                layer,
                heads,
                selected=False,
                rollout=selection.rollout,
                norm_rollout=selection.norm_rollout,
            )
            for layer in layers
        ]
    return passes


@dataclass(frozen=True)
class MapsReduction:
    """The function from a layer's maps to what is wanted of them."""

    selection: AttentionSelection
    layer_pass: LayerPass
    text: int
    separators: Sequence[int]
    convert: Convert
    convert_norms: Convert | None = None
    """As `convert` when None."""

    def __call__(self, output: Output) -> LayerMaps:
        """Take what is wanted, in the thread that computed the maps."""
        maps = output.maps
        assert maps is not None  # noqa: S101 - the scheduler has checked every output
        wanted, selected, kind = self.selection, self.layer_pass.selected, self.layer_pass.kind
        weights, top = None, None
        if selected and wanted.weights:
            if wanted.top_k is None:
                weights = self.convert(maps)
            else:
                indices, values = top_k(maps, wanted.top_k)
                top = self.convert(indices), self.convert(values)
        return LayerMaps(
            self.text,
            weights,
            top,
            statistics(maps, self.separators, STATISTICS_OF[kind])
            if selected and wanted.statistics
            else None,
            maps.mean(axis=0) if self.layer_pass.rollout else None,
            kind,
            *self._of_values(output),
        )

    def _of_values(self, output: Output) -> tuple[Any | None, Floats | None]:
        """Norms, and shares of all heads."""
        maps, products = output.maps, output.value_products
        if maps is None or products is None:
            return None, None
        convert = self.convert_norms or self.convert
        return (
            convert(head_norms(maps, products)) if self.layer_pass.norms else None,
            norm_shares(maps, products) if self.layer_pass.norm_rollout else None,
        )
