"""The computations of layers' maps that answer a selection."""

from __future__ import annotations

from dataclasses import dataclass

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.inference.attention.selection import AttentionSelection


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

    Rollouts are the encoder's. One pass serves both where the selection is of all its layers and
    heads in their order.
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
