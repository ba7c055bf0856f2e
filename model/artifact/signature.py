"""ONNX contract: names of graphs and tensors, dtypes and axes.

docs/artifact.md describes the graphs. Inputs from the host, maps and log-probabilities are float32
in every precision. The two device graphs work on parameters and hidden states that stay on the
device; their outputs are float32 too. Axes that are strings are dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from model.config.encoder import Part

Float = Literal["float32", "float16"]
Dtype = Literal["int64", "int32"] | Float
"""Data type of an input or output."""
Axes = tuple[int | str, ...]
Shapes = dict[str, tuple[int, ...]]
"""Name → shape of one head's parameter."""
STATES = {"query_states": "queries", "key_states": "keys"}
"""Inputs of the attention graphs, which a layer's heads project → their token axes."""
ROWS = ("query_rows", "key_rows")
"""Inputs of the attention graph for a device: rows of a hidden state for each of `STATES`."""
PackedPooling = Literal["mean", "cls", "last"]
PACKED_POOLINGS: tuple[PackedPooling, ...] = get_args(PackedPooling)
"""Poolings that a graph of vectors computes."""
MapKind = Literal["encoder", "decoder", "cross"]
"""Kind of heads: the encoder's, the decoder's self-attention, or its cross-attention."""
DECODER_KINDS: tuple[MapKind, MapKind] = ("decoder", "cross")
"""Kinds of a decoder's heads."""
HeadGraph = Literal["attention", "value_norms", "head_scores"]
"""Name of an encoder's graph of heads."""
ATTENTION_OF: Mapping[MapKind, Literal["attention", "decoder_attention", "cross_attention"]] = {
    "encoder": "attention",
    "decoder": "decoder_attention",
    "cross": "cross_attention",
}
"""Kind of heads → name of their graph, which is also the kind of their maps in comparisons."""
VALUES_OF: Mapping[MapKind, Literal["value_norms", "decoder_value_norms", "cross_value_norms"]] = {
    "encoder": "value_norms",
    "decoder": "decoder_value_norms",
    "cross": "cross_value_norms",
}
"""Kind of heads → name of the graph of their value products."""
GraphName = Literal[
    "encoder",
    "vectors",
    "attention",
    "device_attention",
    "device_pooling",
    "value_norms",
    "head_scores",
    "decomposition",
    "decomposition_values",
    "task",
    "decoder",
    "decoder_attention",
    "cross_attention",
    "decoder_value_norms",
    "cross_value_norms",
    "logprobs",
]
OF_DECODER: tuple[GraphName, ...] = (
    "decoder",
    *(graph[kind] for graph in (ATTENTION_OF, VALUES_OF) for kind in DECODER_KINDS),
    "logprobs",
)
"""Names of a decoder's graphs."""


class TensorSpec(Part):
    """Input or output of a graph."""

    name: str
    dtype: Dtype
    axes: Axes


class GraphSignature(Part):
    """Inputs and outputs of one graph, in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def hidden_state_name(layer: int) -> str:
    """Return the name of the encoder graph's output for hidden state `layer`, 0 … L."""
    return f"hidden_state.{layer}"


def decoder_state_name(layer: int) -> str:
    """Return the name of the decoder graph's output that holds hidden state `layer`, 0 … L_d."""
    return f"decoder_state.{layer}"


def cross_query_name(layer: int) -> str:
    """Return the name of the output that holds cross-attention's query states, 0 … L_d−1."""
    return f"cross_query.{layer}"


def head_parameter_name(parameter: str, layer: int, kind: MapKind = "encoder") -> str:
    """Return the key of `parameter` of a layer's heads in a file of heads; axis 0 is heads."""
    return f"{parameter}.{layer}" if kind == "encoder" else f"{kind}.{parameter}.{layer}"


def specs(dtype: Dtype = "float32", /, **axes: Axes) -> tuple[TensorSpec, ...]:
    """Return tensors of one type, given the axes of each name."""
    return tuple(TensorSpec(name=name, dtype=dtype, axes=own) for name, own in axes.items())
