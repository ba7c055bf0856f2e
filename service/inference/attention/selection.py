"""Selection of attention maps, the sizes of maps, and the passes that compute them.

Notation: T query tokens and S key tokens of a map, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.engines.contract import Ablated
from service.inference.attention.map_parts import WHOLE, MapPart
from service.inference.tokenization.text import Text

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
