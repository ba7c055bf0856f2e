"""How the wanted parts of attention maps are taken from a layer's maps.

Notation: T query tokens and S key tokens of a text, L layers, N heads, k = min(top_k, S). Of a text
with a target, S are the text's tokens and T the target's.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.artifact.signature import MapKind
from service.engines.contract import Floats, Output
from service.inference.attention.layer_passes import LayerPass
from service.inference.attention.norms import head_norms, norm_shares
from service.inference.attention.selection import AttentionSelection
from service.inference.attention.statistics import (
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


@dataclass(frozen=True, slots=True)
class LayerMaps:
    """The wanted parts of one layer's maps of one text; None where not wanted."""

    text: int
    """Index of the text among the request's."""
    weights: Any | None
    """Converted `[heads, T, S]`, or the part of it that was asked for; so for the others."""
    top: tuple[Any, Any] | None
    """Converted indices and values, `[heads, T, k]` each."""
    statistics: dict[str, Floats] | None
    """Name → `[heads]`."""
    mean: Floats | None
    """Over all heads, `[T, S]`."""
    kind: MapKind = "encoder"
    norms: Any | None = None
    """Converted `[heads, T, S]`."""
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
                weights = self.convert(wanted.part.of(maps))
            else:
                indices, values = top_k(wanted.part.rows(maps), wanted.top_k)
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

    def left_bytes(self, queries: int, keys: int) -> int:
        """Bytes in float32 of all that is left of maps of this size, statistics aside."""
        wanted, one = self.selection, self.layer_pass
        rows, columns = wanted.part.shape(queries, keys)
        of_map = rows * columns if one.norms else 0
        if one.selected and wanted.weights:
            of_map += rows * (2 * min(wanted.top_k, keys) if wanted.top_k else columns)
        of_all_heads = (one.rollout + one.norm_rollout) * queries * keys
        return 4 * (len(one.heads) * of_map + of_all_heads)

    def _of_values(self, output: Output) -> tuple[Any | None, Floats | None]:
        """Norms, and shares of all heads."""
        maps, products = output.maps, output.value_products
        if maps is None or products is None:
            return None, None
        convert, part = self.convert_norms or self.convert, self.selection.part
        return (
            convert(part.of(head_norms(maps, products))) if self.layer_pass.norms else None,
            norm_shares(maps, products) if self.layer_pass.norm_rollout else None,
        )
