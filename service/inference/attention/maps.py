"""Reduction of a layer's attention maps to the requested parts.

Notation: T query tokens and S key tokens of a text, L layers, N heads, k = min(top_k, S). If a text
has a target, S are the text's tokens and T the target's.
"""

from __future__ import annotations

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
    head_norms,
    norm_shares,
    statistics,
    top_k,
)
from service.inference.outputs.field import Array
from service.inference.tokenization.text import PictureView
from service.scheduler.outputs import requested

STATISTICS_OF: Mapping[MapKind, tuple[str, ...]] = {
    "encoder": STATISTICS,
    "decoder": STATISTICS,
    "cross": CROSS_STATISTICS,
}
PREFIXES: Mapping[MapKind, str] = {"encoder": "", "decoder": "decoder_", "cross": "cross_"}
"""Kind of maps → prefix of the names of their fields."""
Weights: TypeAlias = NDArray[np.float32 | np.float16]
Convert = Callable[[Floats], Weights]
"""Function of an array of weights, which runs in the computing thread."""


@dataclass(frozen=True, slots=True)
class LayerMaps:
    """Requested parts of a layer's maps of a text."""

    text: int
    """Index of the text in the request."""
    kind: MapKind
    arrays: dict[str, Array]
    """Arrays `[heads, …]` by the name of their field: `attention`, or the largest weights
    `attention.indices` and `attention.values`, and `norms`."""
    statistics: dict[str, Floats]
    """Statistics `[heads]` by the name of their field."""
    steps: dict[str, Floats]
    """Matrix `[S, S]` of all heads for each requested rollout: mean maps, or shares."""


@dataclass(frozen=True, slots=True)
class TextSummary:
    """Results of a text that span its layers."""

    text: int
    """Index of the text in the request."""
    values: dict[str, Array | float]
    """Arrays and numbers by the name of their field, in the order of a reply."""


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
        maps, products = requested(output.maps), output.value_products
        part, include, kind = self.selection.part, self.layer_pass.include, self.layer_pass.kind
        prefix, arrays = PREFIXES[kind], dict[str, Array]()
        found, steps = dict[str, Floats](), dict[str, Floats]()
        if "weights" in include and self.selection.top_k is None:
            arrays[f"{prefix}attention"] = self.convert(part.of(maps, self.view))
        elif "weights" in include:
            indices, values = top_k(part.rows(maps), requested(self.selection.top_k))
            arrays[f"{prefix}attention.indices"] = indices
            arrays[f"{prefix}attention.values"] = self.convert(values)
        if "norms" in include:
            arrays[f"{prefix}norms"] = part.of(head_norms(maps, requested(products)), self.view)
        if "stats" in include:
            by_name = statistics(maps, self.separators, STATISTICS_OF[kind])
            found = {f"{prefix}stats.{name}": values for name, values in by_name.items()}
        if "rollout" in include:
            steps["rollout"] = maps.mean(axis=0)
        if "norm_rollout" in include:
            steps["norm_rollout"] = norm_shares(maps, requested(products))
        return LayerMaps(self.text, kind, arrays, found, steps)

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
