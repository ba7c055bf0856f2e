"""One layer of an encoder, recomputed from the hidden state that enters it: step, parts, tensors.

Of layers with a norm after each sum, h the entering state and h' the next one:

    residual = attention_norm(h + attended),    h' = output_norm(residual + mlp)

and of layers with a norm before each part, where a norm follows the last layer alone:

    residual = h + attended,    h' = residual + mlp    or    final_norm(residual + mlp)

Notation: S tokens of one text, H hidden size, N heads, p size of a head's values, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model.artifact.decomposition import VALUE_BIAS, Shapes, layer_shapes
from model.artifact.signature import GraphSignature, TensorSpec
from model.config.encoder import EncoderConfig

Floats = NDArray[np.float32]
PartName = Literal["attended", "residual", "mlp"]
"""Parts of a state that are vectors of each token."""
PARTS: tuple[PartName, ...] = ("attended", "residual", "mlp")
FINAL_NORM = "final_norm"
FINAL_APPLIES = "final_norm.applies"
"""Above 0 for the last layer of an encoder with a norm after it."""
_FROM_HEADS = {"attention.output.weight", VALUE_BIAS}
"""Parameters of `layer_shapes` that the parameters of heads have as well."""


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A text's way through one layer, with some heads' outputs replaced.

    The output of head n becomes `head_mask[n]` times its own, plus `patch[n]`.
    """

    states: Floats
    """`[S, H]`, the hidden state that enters the layer."""
    layer: int
    """0 … L−1."""
    head_mask: Floats
    """`[N]`."""
    patch: Floats
    """`[N, S, p]`."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The arrays of one layer, in the order of the graph's outputs."""

    heads: Floats
    """`[N, S, p]`, outputs of heads as they enter the output projection."""
    attended: Floats
    """`[S, H]`, added by the heads together, with the bias of the output projection."""
    residual: Floats
    """`[S, H]`, the state that the feed-forward part reads and is added to."""
    mlp: Floats
    """`[S, H]`, added by the feed-forward part, with its bias."""
    state: Floats
    """`[S, H]`, the next hidden state."""


def parameter_shapes(config: EncoderConfig) -> Shapes:
    """Name → shape of a layer's parameters beside the parameters of its heads."""
    shapes = {name: s for name, s in layer_shapes(config).items() if name not in _FROM_HEADS}
    if config.layer.order != "post_norm":
        norms = {
            name.replace("feed_forward_norm", FINAL_NORM): shape
            for name, shape in shapes.items()
            if name.startswith("feed_forward_norm.")
        }
        shapes |= norms | {FINAL_APPLIES: (1,)}
    return shapes


def parameter_keys(config: EncoderConfig, layer: int) -> dict[str, str]:
    """Names of `parameter_shapes` but `FINAL_APPLIES` → keys of the encoder's parameters."""
    prefix = f"layers.{config.layer_group(layer)}."
    return {
        name: name if name.startswith(FINAL_NORM) else prefix + name
        for name in parameter_shapes(config)
        if name != FINAL_APPLIES
    }


def final_norm_applies(config: EncoderConfig, layer: int) -> Floats | None:
    """Value of `FINAL_APPLIES` for layer 0 … L−1; None without a norm after the last layer."""
    if config.layer.order == "post_norm":
        return None
    return np.full(1, layer + 1 == config.num_hidden_layers, np.float32)


def layer_parts_signature(config: EncoderConfig, heads: Shapes) -> GraphSignature:
    """A step and the parameters of its layer → the layer's parts.

    Args:
        config: the encoder's.
        heads: name → shape of one head's parameter; the graph takes `[N, …]`.

    """
    h, n, p = config.hidden_size, config.num_attention_heads, config.head_size
    vectors: tuple[int | str, ...] = ("keys", h)
    outputs: tuple[int | str, ...] = (n, "keys", p)
    parameters = {name: (n, *shape) for name, shape in heads.items()} | parameter_shapes(config)
    inputs: dict[str, tuple[int | str, ...]] = {"states": vectors, "head_mask": (n,)}
    inputs |= {"patch": outputs, **parameters}
    found = {"heads": outputs} | dict.fromkeys((*PARTS, "state"), vectors)
    return GraphSignature(inputs=_specs(inputs), outputs=_specs(found))


def _specs(shapes: dict[str, tuple[int | str, ...]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype="float32", axes=axes) for name, axes in shapes.items())
