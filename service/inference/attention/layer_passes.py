"""Passes over layers: the computations of maps that a selection needs."""

from __future__ import annotations

from dataclasses import dataclass

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.inference.attention.selection import ArrayName, AttentionSelection

OF_HEADS: frozenset[ArrayName] = frozenset({"weights", "stats", "norms"})
"""Arrays of each selected head."""
OF_ENCODER: frozenset[ArrayName] = frozenset({"rollout", "norm_rollout"})
"""Arrays that need all heads of all layers of the encoder."""
OF_VALUES: frozenset[ArrayName] = frozenset({"norms", "norm_rollout"})
"""Arrays that depend on values in addition to maps."""


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
