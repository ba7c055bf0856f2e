"""Passes over layers: the computations of maps that a selection needs."""

from __future__ import annotations

from dataclasses import dataclass

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.inference.attention.selection import AttentionSelection


@dataclass(frozen=True)
class LayerPass:
    """Computation of a layer's maps of a text."""

    layer: int
    heads: tuple[int, ...]
    selected: bool
    """Whether the pass yields the selection's weights and statistics."""
    rollout: bool
    """Whether the pass yields the mean over all heads for the rollout."""
    kind: MapKind = "encoder"
    norms: bool = False
    """Whether the pass yields the selection's norms."""
    norm_rollout: bool = False
    """Whether the pass yields the shares of all heads for the norm rollout."""

    @property
    def values(self) -> bool:
        """Whether the pass needs products of the heads' values in addition to the maps."""
        return self.norms or self.norm_rollout


def layer_passes(selection: AttentionSelection, config: EncoderConfig) -> list[LayerPass]:
    """Return the passes for a selection: its layers in order, and all layers for a rollout.

    Rollouts belong to the encoder. If the selection has all encoder layers and heads in order, its
    passes also serve the rollouts.
    """
    layers = tuple(range(config.num_hidden_layers))
    heads = tuple(range(config.num_attention_heads))
    maps = selection.weights or selection.statistics
    shared = (maps or selection.norms) and (selection.layers, selection.heads) == (layers, heads)
    passes = []
    for kind, (of_kind, asked) in selection.of_kinds.items():
        encoder = kind == "encoder"
        if maps or selection.norms:
            passes += [
                LayerPass(
                    layer,
                    asked,
                    selected=maps,
                    rollout=shared and encoder and selection.rollout,
                    kind=kind,
                    norms=selection.norms,
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
