"""Selection of attention maps, the passes that compute them, and their reduction.

Notation: T query tokens and S key tokens of a map, L layers, N heads, k = min(top_k, S).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.engines.contract import Ablated, Floats, Output
from service.inference.attention.map_parts import WHOLE, MapPart
from service.inference.attention.statistics import (
    CROSS_STATISTICS,
    STATISTICS,
    head_norms,
    norm_shares,
    statistics,
    top_k,
)
from service.inference.outputs.field import Array
from service.inference.tokenization.text import PictureView, Text
from service.scheduler.outputs import requested

ArrayName = Literal["weights", "stats", "rollout", "norms", "norm_rollout", "logprobs"]
"""Array that a request may include."""
OF_HEADS: frozenset[ArrayName] = frozenset({"weights", "stats", "norms"})
"""Arrays of each selected head."""
OF_ENCODER: frozenset[ArrayName] = frozenset({"rollout", "norm_rollout"})
"""Arrays that need all heads of all layers of the encoder."""
OF_VALUES: frozenset[ArrayName] = frozenset({"norms", "norm_rollout"})
"""Arrays that depend on values in addition to maps."""
LayersAndHeads: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
NO_MAPS: LayersAndHeads = (), ()
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


class Lengths(NamedTuple):
    """Number of tokens of a text and its target."""

    source: int
    target: int = 0
    """Number of tokens of the target; 0 without a target."""

    @classmethod
    def of(cls, text: Text) -> Lengths:
        """Return the lengths of a text and its target."""
        return cls(len(text.input_ids), len(text.target.input_ids) if text.target else 0)

    def shape(self, kind: MapKind) -> tuple[int, int]:
        """Return the number of queries and keys of a map."""
        return (
            self.source if kind == "encoder" else self.target,
            self.target if kind == "decoder" else self.source,
        )


@dataclass(frozen=True)
class AttentionSelection:
    """Requested arrays, with valid non-negative indices of layers and heads."""

    maps: Mapping[MapKind, LayersAndHeads]
    """Layers and heads of each requested kind of maps, in the order of a reply."""
    include: frozenset[ArrayName] = frozenset({"weights"})
    part: MapPart = WHOLE
    """Part of weights and norms; with `top_k`, only its queries apply."""
    top_k: int | None = None
    """Number of largest weights of each query to keep; None for all weights."""
    ablated: Mapping[MapKind, Ablated] = field(default_factory=dict)
    """Heads of each kind whose output is set to zero, as (layer, head)."""
    targets: bool = False
    """Whether texts have targets, which the decoder reads."""

    @property
    def only_weights(self) -> bool:
        """Whether only whole maps are requested."""
        return self.include == {"weights"} and not (self.top_k or self.ablates)

    @property
    def ablates(self) -> bool:
        """Whether a head of any kind is ablated."""
        return any(self.ablated.values())


@dataclass(frozen=True)
class LayerPass:
    """Computation of a layer's maps of a text."""

    kind: MapKind
    layer: int
    heads: tuple[int, ...]
    include: frozenset[ArrayName]
    """Arrays of the selection to which the maps are reduced."""

    @property
    def values(self) -> bool:
        """Whether the pass needs products of the heads' values in addition to the maps."""
        return bool(self.include & OF_VALUES)

    @property
    def arrays(self) -> int:
        """Number of arrays of a map's size that the pass computes."""
        return len(self.heads) * (2 if "norms" in self.include else 1)


def layer_passes(selection: AttentionSelection, config: EncoderConfig) -> list[LayerPass]:
    """Return the passes for a selection: its layers in order, and all layers for a rollout.

    If the selection has all encoder layers and heads in order, its passes also serve the rollouts.
    """
    layers, heads = range(config.num_hidden_layers), tuple(range(config.num_attention_heads))
    own, rollouts = selection.include & OF_HEADS, selection.include & OF_ENCODER
    shared = bool(own) and selection.maps.get("encoder") == (tuple(layers), heads)
    passes = [
        LayerPass(kind, layer, of_kind, own | rollouts if shared and kind == "encoder" else own)
        for kind, (selected, of_kind) in selection.maps.items()
        for layer in (selected if own else ())
    ]
    if rollouts and not shared:
        passes += [LayerPass("encoder", layer, heads, rollouts) for layer in layers]
    return passes


@dataclass(frozen=True, slots=True)
class LayerMaps:
    """Requested parts of a layer's maps of a text."""

    text: int
    """Index of the text in the request."""
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
        return LayerMaps(self.text, arrays, found, steps)

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
