"""Reduction of a layer's attention maps to the requested parts.

Notation: T query tokens and S key tokens of a text, L layers, N heads, k = min(top_k, S). If a text
has a target, S are the text's tokens and T the target's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from model.artifact.signature import MapKind
from service.engines.contract import Floats, Output
from service.inference.attention.selection import OF_ENCODER, AttentionSelection, LayerPass
from service.inference.attention.statistics import (
    CROSS_STATISTICS,
    STATISTICS,
    Indices,
    head_norms,
    norm_shares,
    rollout_step,
    statistics,
    top_k,
)
from service.inference.tokenization.text import PictureView
from service.scheduler.outputs import requested

STATISTICS_OF: Mapping[MapKind, tuple[str, ...]] = {
    "encoder": STATISTICS,
    "decoder": STATISTICS,
    "cross": CROSS_STATISTICS,
}
Weights: TypeAlias = NDArray[np.float32 | np.float16]
Convert = Callable[[Floats], Weights]
"""Function of an array of weights, which runs in the computing thread."""


def unchanged(weights: Floats) -> Weights:
    """Return weights without conversion."""
    return weights


@dataclass(frozen=True, slots=True)
class LayerMaps:
    """Requested parts of a layer's maps of a text; None for parts that are not requested."""

    text: int
    """Index of the text in the request."""
    weights: Weights | None
    """Converted weights `[heads, T, S]`, or the requested part of them, as for other arrays."""
    top: tuple[Indices, Weights] | None
    """Indices and converted values of the largest weights, `[heads, T, k]` each."""
    statistics: dict[str, Floats] | None
    """Name → statistic `[heads]`."""
    mean: Floats | None
    """Mean over all heads, `[T, S]`."""
    kind: MapKind = "encoder"
    norms: Floats | None = None
    """Norms `[heads, T, S]`."""
    shares: Floats | None = None
    """Shares by `norm_shares` of all heads, `[S, S]`."""


@dataclass(frozen=True, slots=True)
class TextSummary:
    """Results of a text that span its layers."""

    text: int
    """Index of the text in the request."""
    statistics: dict[MapKind, dict[str, Floats]]
    """Statistics `[layers, heads]` of each kind of maps, by name; empty if not requested."""
    rollout: Floats | None
    """Attention rollout, `[S, S]`."""
    pooled_shift: float | None
    """Value of 1 − cosine between the pooled vectors with and without the ablation."""
    logprob_shift: float | None = None
    """Change of the target tokens' mean log-probability by the ablation."""
    logprobs: Floats | None = None
    """Log-probability of each target token, `[T]`."""
    norm_rollout: Floats | None = None
    """Norm rollout, `[S, S]`."""


class LayerResults:
    """Accumulator of layer results for a text's summary."""

    def __init__(self) -> None:
        self._statistics: dict[MapKind, dict[str, list[Floats]]] = {}
        self._rollout: Floats | None = None
        self._norm_rollout: Floats | None = None

    async def add(self, maps: LayerMaps) -> None:
        """Add the results of a layer."""
        for name, values in (maps.statistics or {}).items():
            self._statistics.setdefault(maps.kind, {}).setdefault(name, []).append(values)
        if maps.mean is not None:
            self._rollout = await asyncio.to_thread(rollout_step, self._rollout, maps.mean[None])
        if maps.shares is not None:
            step = self._norm_rollout, maps.shares[None]
            self._norm_rollout = await asyncio.to_thread(rollout_step, *step)

    def complete(self, summary: TextSummary) -> TextSummary:
        """Return a text's summary with statistics and rollouts."""
        stacked = {
            kind: {name: np.stack(values) for name, values in by_name.items()}
            for kind, by_name in self._statistics.items()
        }
        return dataclasses.replace(
            summary, statistics=stacked, rollout=self._rollout, norm_rollout=self._norm_rollout
        )


@dataclass(frozen=True)
class MapsReduction:
    """Function from a layer's maps to their requested parts."""

    selection: AttentionSelection
    layer_pass: LayerPass
    text: int
    separators: Sequence[int]
    convert: Convert
    view: PictureView | None = None
    """Picture of the maps; None for a text."""

    def __call__(self, output: Output) -> LayerMaps:
        """Reduce the maps, in the computing thread."""
        maps = requested(output.maps)
        part, include, kind = self.selection.part, self.layer_pass.include, self.layer_pass.kind
        weights, top = None, None
        if "weights" in include:
            if self.selection.top_k is None:
                weights = self.convert(part.of(maps, self.view))
            else:
                indices, values = top_k(part.rows(maps), self.selection.top_k)
                top = indices, self.convert(values)
        return LayerMaps(
            self.text,
            weights,
            top,
            statistics(maps, self.separators, STATISTICS_OF[kind]) if "stats" in include else None,
            maps.mean(axis=0) if "rollout" in include else None,
            kind,
            *self._of_values(output),
        )

    def left_bytes(self, queries: int, keys: int) -> int:
        """Return the float32 bytes of the reduced maps of this size, without statistics."""
        include, most = self.layer_pass.include, self.selection.top_k
        rows, *columns = self.selection.part.shape(queries, keys, self.view)
        of_row = math.prod(columns)
        of_map = rows * of_row if "norms" in include else 0
        if "weights" in include:
            of_map += rows * (2 * min(most, keys) if most else of_row)
        of_all_heads = len(include & OF_ENCODER) * queries * keys
        return 4 * (len(self.layer_pass.heads) * of_map + of_all_heads)

    def _of_values(self, output: Output) -> tuple[Floats | None, Floats | None]:
        """Return the norms, and the shares of all heads."""
        maps, products = output.maps, output.value_products
        if maps is None or products is None:
            return None, None
        include, part = self.layer_pass.include, self.selection.part
        return (
            part.of(head_norms(maps, products), self.view) if "norms" in include else None,
            norm_shares(maps, products) if "norm_rollout" in include else None,
        )
