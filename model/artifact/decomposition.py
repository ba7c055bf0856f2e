"""Decomposition of an encoder's states into shares of input tokens: its steps and tensors.

Along the axis of P = S + 1 parts, part 0 is the state of a token and part i the share that input
token i − 1 has in it; parts 1 … S sum to part 0.

Notation: S tokens of one text, C of them that are computed together, P parts, H hidden size,
I intermediate size, L layers, N heads of queries and m of keys and values, p size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.artifact.signature import Shapes
from model.config.encoder import EncoderConfig

Floats = NDArray[np.float32]
APPLIES = "attention_norm.applies"
"""Parameter above 0 if a layer's input is normalised; used if the first layer's input is not."""
VALUE_BIAS = "attention.value.bias"
"""Bias of the value projection. In the first layer it belongs to the values, in the others to the
attention output, as in DecompX's code: before the first layer a state belongs to its own token
alone, and so does its bias."""
_NORMS = {
    "post_norm": ("attention_norm", "output_norm"),
    "pre_norm": ("feed_forward_norm",),
    "sandwich_norm": ("attended_norm", "feed_forward_norm", "output_norm"),
}
"""Norms of a layer beside the norm of its input."""


@dataclass(frozen=True, slots=True)
class DecompositionStep:
    """Rows of a text's decomposition that enter one layer."""

    parts: Floats
    """`[C, P, H]`, parts of the tokens `first_row` … `first_row + C − 1` as they enter the
    layer."""
    layer: int
    """Layer 0 … L−1; −1 for hidden state 0 itself, for which only values are computed."""
    first_row: int = 0
    states: Floats | None = None
    """`[S, H]`, hidden state that enters the layer; None with layer −1, like `values`."""
    values: Floats | None = None
    """`[m, S, P, p]`, value projections of all tokens' parts."""
    segment: int = 0
    """Token type of the text's first token."""


@dataclass(frozen=True, slots=True)
class DecomposedRows:
    """Rows of a step after its layer."""

    parts: Floats
    """`[C, P, H]`; normalised after the last layer if the encoder has a norm there."""
    values: Floats | None
    """`[m, C, P, p]`, the parts projected by the next layer's heads; None after the last layer."""


def layer_shapes(config: EncoderConfig) -> Shapes:
    """Return name → shape of a layer's parameters, without its maps' and its input norm's."""
    h, n, m, p = _sizes(config)
    i, layout, biases = config.intermediate_size, config.layer, config.attention
    shapes: Shapes = {"attention.output.weight": (h, n * p)}
    if biases.bias:
        shapes[VALUE_BIAS] = (m * p,)
    if biases.output_bias:
        shapes["attention.output.bias"] = (h,)
    for name, outputs, inputs in (("expand", i, h), ("gate", i, h), ("contract", h, i)):
        if name == "gate" and not layout.gated:
            continue
        shapes[f"feed_forward.{name}.weight"] = (outputs, inputs)
        bias, of_output = layout.feed_forward_bias, layout.feed_forward_output_bias
        if bias if name != "contract" or of_output is None else of_output:
            shapes[f"feed_forward.{name}.bias"] = (outputs,)
    for name in _NORMS[layout.order]:
        shapes |= _norm_shapes(name, config)
    return shapes


def value_shapes(config: EncoderConfig) -> Shapes:
    """Return name → shape of the parameters that turn the parts entering a layer into values."""
    shapes: Shapes = {}
    if config.layer.order != "post_norm":
        shapes |= _norm_shapes("attention_norm", config)
        if not config.layer.first_attention_norm:
            shapes[APPLIES] = (1,)
    width = config.num_key_value_heads * config.head_size
    shapes["attention.value.weight"] = (width, config.hidden_size)
    return shapes | ({VALUE_BIAS: (width,)} if config.attention.bias else {})


def layer_keys(config: EncoderConfig, layer: int) -> dict[str, str]:
    """Return names of `layer_shapes` → keys of the encoder's parameters, for layer 0 … L−1.

    Parameters without a key are 0 in that layer.
    """
    prefix = f"layers.{config.layer_group(layer)}"
    names = layer_shapes(config).keys() - ({VALUE_BIAS} if layer == 0 else set())
    return {name: f"{prefix}.{name}" for name in sorted(names)}


def value_keys(config: EncoderConfig, layer: int) -> dict[str, str]:
    """Return names of `value_shapes` except `APPLIES` → keys of the encoder's parameters.

    Parameters without a key are 0 in that layer. Layer L stands for the norm after the last layer.
    A layer without a norm of its input gets one that does not apply.
    """
    last = config.num_hidden_layers - 1
    prefix = f"layers.{config.layer_group(min(layer, last))}"
    names = value_shapes(config).keys() - ({APPLIES, VALUE_BIAS} if layer else {APPLIES})
    norm = f"{prefix}.attention_norm"
    if layer > last:
        norm = "final_norm"
    elif not norm_applies(config, layer):
        norm = f"{prefix}.feed_forward_norm"
    return {
        name: f"{prefix}.{name}".replace(f"{prefix}.attention_norm", norm) for name in sorted(names)
    }


def norm_applies(config: EncoderConfig, layer: int) -> bool:
    """Return whether the input of a layer with a norm before its attention is normalised."""
    return layer > 0 or config.layer.first_attention_norm


def _norm_shapes(name: str, config: EncoderConfig) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (config.hidden_size,)}
    if config.layer.norm == "layer_norm" and config.layer.norm_bias:
        shapes[f"{name}.bias"] = (config.hidden_size,)
    return shapes


def _sizes(config: EncoderConfig) -> tuple[int, int, int, int]:
    """Return H, N, m and p."""
    groups = config.num_key_value_heads
    return config.hidden_size, config.num_attention_heads, groups, config.head_size
