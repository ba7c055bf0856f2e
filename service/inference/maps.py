"""The wanted parts of attention maps, and how they are taken from a layer's maps.

Notation: T query tokens and S key tokens of a text, L layers, N heads, k = min(top_k, S).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from model.config import EncoderConfig
from service.engines.contract import Floats, Output
from service.inference.statistics import statistics, top_k

Convert = Callable[[Any], Any]
"""A function of one array of weights or indices, which runs in the thread that computed it."""


@dataclass(frozen=True)
class AttentionSelection:
    """The parts of the maps that a caller wants; no index is negative, and all are in range."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    weights: bool
    statistics: bool
    rollout: bool
    top_k: int | None
    """Largest weights of each query that are kept; all weights when None."""
    ablated: tuple[tuple[int, int], ...]
    """(layer, head) of each head whose output is multiplied by zero."""

    @property
    def only_weights(self) -> bool:
        """Whether whole maps are wanted, and nothing else."""
        others = self.statistics or self.rollout or self.ablated or self.top_k
        return self.weights and not others


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


@dataclass(frozen=True, slots=True)
class TextSummary:
    """The results of one text that span its layers."""

    text: int
    """Index of the text among the request's."""
    statistics: dict[str, Floats]
    """Name → `[layers, heads]`; empty if not wanted."""
    rollout: Floats | None
    """`[S, S]`."""
    pooled_shift: float | None
    """1 − cosine of the pooled vectors with and without the ablation."""


@dataclass(frozen=True)
class LayerPass:
    """One computation of a layer's maps of a text."""

    layer: int
    heads: tuple[int, ...]
    selected: bool
    """Whether the selection's weights and statistics are taken from it."""
    rollout: bool
    """Whether the rollout's mean over all heads is."""


def layer_passes(selection: AttentionSelection, config: EncoderConfig) -> list[LayerPass]:
    """The passes that answer a selection: its own layers in its order, and all for the rollout.

    One pass serves both where the selection is of all layers and heads in their order.
    """
    layers = tuple(range(config.num_hidden_layers))
    heads = tuple(range(config.num_attention_heads))
    own = selection.weights or selection.statistics
    whole = (selection.layers, selection.heads) == (layers, heads)
    shared = selection.rollout and own and whole
    passes = []
    if own:
        passes = [
            LayerPass(layer, selection.heads, selected=True, rollout=shared)
            for layer in selection.layers
        ]
    if selection.rollout and not shared:
        passes += [LayerPass(layer, heads, selected=False, rollout=True) for layer in layers]
    return passes


@dataclass(frozen=True)
class MapsReduction:
    """The function from a layer's maps to what is wanted of them."""

    selection: AttentionSelection
    layer_pass: LayerPass
    text: int
    separators: Sequence[int]
    convert: Convert

    def __call__(self, output: Output) -> LayerMaps:
        """Take what is wanted, in the thread that computed the maps."""
        maps = output.maps
        assert maps is not None  # noqa: S101 - the scheduler has checked every output
        wanted, selected = self.selection, self.layer_pass.selected
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
            statistics(maps, self.separators) if selected and wanted.statistics else None,
            maps.mean(axis=0) if self.layer_pass.rollout else None,
        )
