"""Recomputation of one encoder layer from its input: step, parts, and tensors of the graph.

In layers with a norm after each sum, with h the entering state and h' the next one:

    residual = attention_norm(h + attended),    h' = output_norm(residual + mlp)

In layers with a norm before each part, where only the last layer is followed by a norm:

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
"""Name of a part of a state, a vector per token."""
PARTS: tuple[PartName, ...] = ("attended", "residual", "mlp")
FINAL_NORM = "final_norm"
FINAL_APPLIES = "final_norm.applies"
"""Parameter above 0 for the last layer of an encoder with a final norm."""
_FROM_HEADS = {"attention.output.weight", VALUE_BIAS}
"""Parameters in `layer_shapes` that belong to the heads."""


@dataclass(frozen=True, slots=True)
class LayerStep:
    """Input of one recomputed layer, with some heads' outputs replaced.

    The output of head n becomes `head_mask[n]` times its own, plus `patch[n]`.
    """

    states: Floats
    """`[S, H]`, hidden state that enters the layer."""
    layer: int
    """Layer 0 … L−1."""
    head_mask: Floats
    """`[N]`."""
    patch: Floats
    """`[N, S, p]`."""
    adapter: int = 0
    """Number of the text's adapter, 1 … K; 0 for none."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Arrays of one layer, in the order of the graph's outputs."""

    heads: Floats
    """`[N, S, p]`, outputs of heads as they enter the output projection."""
    attended: Floats
    """`[S, H]`, sum of all heads' contributions, with the bias of the output projection."""
    residual: Floats
    """`[S, H]`, input and residual of the feed-forward part."""
    mlp: Floats
    """`[S, H]`, output of the feed-forward part, with its bias."""
    state: Floats
    """`[S, H]`, the next hidden state."""


def parameter_shapes(config: EncoderConfig) -> Shapes:
    """Return name → shape of a layer's parameters, without its heads'."""
    shapes = {name: s for name, s in layer_shapes(config).items() if name not in _FROM_HEADS}
    if config.has_final_norm:
        norms = {
            name.replace("feed_forward_norm", FINAL_NORM): shape
            for name, shape in shapes.items()
            if name.startswith("feed_forward_norm.")
        }
        shapes |= norms | {FINAL_APPLIES: (1,)}
    return shapes


def parameter_keys(config: EncoderConfig, layer: int) -> dict[str, str]:
    """Return names of `parameter_shapes` but `FINAL_APPLIES` → keys of encoder parameters."""
    prefix = f"layers.{config.layer_group(layer)}."
    return {
        name: name if name.startswith(FINAL_NORM) else prefix + name
        for name in parameter_shapes(config)
        if name != FINAL_APPLIES
    }


def final_norm_applies(config: EncoderConfig, layer: int) -> Floats | None:
    """Return `FINAL_APPLIES` for layer 0 … L−1; None without a norm after the last layer."""
    if not config.has_final_norm:
        return None
    return np.full(1, layer + 1 == config.num_hidden_layers, np.float32)


def layer_parts_signature(config: EncoderConfig, heads: Shapes) -> GraphSignature:
    """Return the signature of `layer_parts.onnx`: a step and its layer's parameters → its parts.

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
    parts = {"heads": outputs} | dict.fromkeys((*PARTS, "state"), vectors)
    return GraphSignature(inputs=_specs(inputs), outputs=_specs(parts))


def _specs(shapes: dict[str, tuple[int | str, ...]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype="float32", axes=axes) for name, axes in shapes.items())
