"""The ONNX contract of a decoder's graphs: names, dtypes and axes.

* `decoder.onnx`: a target's shifted labels and the encoder's last hidden states to the decoder's
  hidden states and its cross-attention's query states;
* `decoder_attention.onnx` and `cross_attention.onnx`: as `attention.onnx`, for the decoder's heads;
* `decoder_value_norms.onnx` and `cross_value_norms.onnx`: as `value_norms.onnx`, likewise;
* `logprobs.onnx`: rows of the decoder's last hidden state to the log-probability of one label each.

Inputs from the host, maps and log-probabilities are float32 in every precision.
"""

from __future__ import annotations

from typing import NamedTuple

from model.artifact.signature import (
    Float,
    GraphName,
    GraphSignature,
    TensorSpec,
    attention_signature,
    value_norms_signature,
)
from model.config.decoder import DecoderConfig

Shapes = dict[str, tuple[int, ...]]
"""Name → shape of one head's parameter."""


class HeadShapes(NamedTuple):
    """Shapes of one kind of heads' parameters, for their maps and for their added values."""

    maps: Shapes
    values: Shapes


GRID = ("padded_index", "packed_index")
"""Inputs of a packed batch that place tokens in the padded grid."""


def decoder_state_name(layer: int) -> str:
    """Return the name of the decoder graph's output that holds hidden state `layer`, 0 … L_d."""
    return f"decoder_state.{layer}"


def cross_query_name(layer: int) -> str:
    """Return the name of the output that holds cross-attention's query states, 0 … L_d−1."""
    return f"cross_query.{layer}"


def decoder_signature(decoder: DecoderConfig, dtype: Float = "float32") -> GraphSignature:
    """Return the signature of `decoder.onnx`.

    It maps a packed target, the positions of its source's tokens and `encoded` `[S_all, H]` to
    states `[T_all, H]`: `decoder_state.0 … L_d` and `cross_query.0 … L_d−1`.
    """
    config = decoder.layers
    axes: dict[str, tuple[str, ...]] = {
        "input_ids": ("target_tokens",),
        "position_ids": ("target_tokens",),
        "padded_index": ("batch", "target_sequence"),
        "packed_index": ("target_tokens",),
        "source_padded_index": ("batch", "sequence"),
    }
    of_heads = ("batch", config.num_hidden_layers, config.num_attention_heads)
    layers = range(config.num_hidden_layers)
    outputs = [decoder_state_name(layer) for layer in (*layers, len(layers))]
    outputs += [cross_query_name(layer) for layer in layers]
    return GraphSignature(
        inputs=(
            *(TensorSpec(name=name, dtype="int64", axes=names) for name, names in axes.items()),
            TensorSpec(name="encoded", dtype="float32", axes=("tokens", config.hidden_size)),
            TensorSpec(name="head_mask", dtype="float32", axes=of_heads),
            TensorSpec(name="cross_head_mask", dtype="float32", axes=of_heads),
        ),
        outputs=tuple(
            TensorSpec(name=name, dtype=dtype, axes=("target_tokens", config.hidden_size))
            for name in outputs
        ),
    )


def logprobs_signature(decoder: DecoderConfig) -> GraphSignature:
    """Return the signature of `logprobs.onnx`.

    It maps rows `[n, H]` of the last decoder state and `labels` `[n]` to `logprobs` `[n]`.
    """
    rows = ("vectors", decoder.layers.hidden_size)
    return GraphSignature(
        inputs=(
            TensorSpec(name="rows", dtype="float32", axes=rows),
            TensorSpec(name="labels", dtype="int64", axes=("vectors",)),
        ),
        outputs=(TensorSpec(name="logprobs", dtype="float32", axes=("vectors",)),),
    )


def decoder_signatures(
    decoder: DecoderConfig, dtype: Float, own: HeadShapes, cross: HeadShapes
) -> dict[GraphName, GraphSignature]:
    """Return the signatures of a decoder's graphs, given its heads' parameter shapes."""
    return {
        "decoder": decoder_signature(decoder, dtype),
        "decoder_attention": attention_signature(decoder.layers, own.maps),
        "cross_attention": attention_signature(decoder.layers, cross.maps),
        "decoder_value_norms": value_norms_signature(decoder.layers, own.values),
        "cross_value_norms": value_norms_signature(decoder.layers, cross.values),
        "logprobs": logprobs_signature(decoder),
    }
