"""The ONNX contract: names, dtypes and axes of every graph in an artifact.

* `encoder.onnx`: token ids to all hidden states;
* `attention.onnx`: one layer's inputs and the asked heads' parameters to attention weights;
* `device_attention.onnx`: the same from all heads' parameters and the numbers of those asked for;
* `device_pooling.onnx`: some tokens of a hidden state to one vector;
* `value_norms.onnx`: a layer's input and heads' value and output parameters to inner products of
  what those heads add of each token;
* `head_scores.onnx`: the same input and heads' parameters to their queries, keys and scores;
* `decomposition.onnx`, `decomposition_values.onnx`: what a layer makes of the shares that input
  tokens have in states, and of its parameters: see `model.artifact.decomposition`;
* `layer_parts.onnx`: a layer's input and its parameters to what its parts add and the next state:
  see `model.artifact.layer_parts`;
* `task.onnx`: rows of the last hidden state to what a task head answers, always in float32.

Those of a decoder are in `model.artifact.decoder_signature`.

The two of a device are where parameters and hidden states stay; what a host gives them and
gets from them is float32 in every precision. Axes that are strings are dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from model.artifact.task import TaskConfig
from model.config.encoder import EncoderConfig

Float = Literal["float32", "float16"]
Dtype = Literal["int64", "int32"] | Float
"""int32 is for ids of foreign graphs alone."""
STATES = {"query_states": "queries", "key_states": "keys"}
"""Inputs of the attention graphs, which a layer's heads project, and their token axes."""
IN_FLOAT32 = {"frequencies", "window", "input_norm_applies"}
"""Parameters of a head that are float32 in every precision: angles, distances and choices."""
MapKind = Literal["encoder", "decoder", "cross"]
"""Whose heads: the encoder's, the decoder's own, or those that look from decoder to encoder."""
DECODER_KINDS: tuple[MapKind, MapKind] = ("decoder", "cross")
"""Of a decoder's heads."""
ATTENTION_OF: Mapping[MapKind, Literal["attention", "decoder_attention", "cross_attention"]] = {
    "encoder": "attention",
    "decoder": "decoder_attention",
    "cross": "cross_attention",
}
"""Names of these heads' graph, and of their maps where these are compared."""
VALUES_OF: Mapping[MapKind, Literal["value_norms", "decoder_value_norms", "cross_value_norms"]] = {
    "encoder": "value_norms",
    "decoder": "decoder_value_norms",
    "cross": "cross_value_norms",
}
"""Names of the graph of what these heads add."""
GraphName = Literal[
    "encoder",
    "attention",
    "device_attention",
    "device_pooling",
    "value_norms",
    "head_scores",
    "decomposition",
    "decomposition_values",
    "layer_parts",
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
"""The graphs of a decoder."""


class TensorSpec(BaseModel):
    """One input or output of a graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dtype: Dtype
    axes: tuple[int | str, ...]


class GraphSignature(BaseModel):
    """Inputs and outputs of one graph, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def hidden_state_name(layer: int) -> str:
    """The encoder graph's output that holds hidden state `layer`, 0 … L."""
    return f"hidden_state.{layer}"


def head_parameter_name(parameter: str, layer: int, kind: MapKind = "encoder") -> str:
    """The tensor in a file of heads that feeds `parameter` for `layer`; axis 0 is heads."""
    return f"{parameter}.{layer}" if kind == "encoder" else f"{kind}.{parameter}.{layer}"


def encoder_signature(config: EncoderConfig, dtype: Float = "float32") -> GraphSignature:
    """A packed batch and `head_mask` → `hidden_state.0 … L`, `[T, H]` each."""
    grid = {"padded_index": ("batch", "sequence")}
    names = ("input_ids", "token_type_ids", "position_ids", "padded_index", "packed_index")
    return GraphSignature(
        inputs=(
            *(
                TensorSpec(name=name, dtype="int64", axes=grid.get(name, ("tokens",)))
                for name in names
            ),
            TensorSpec(
                name="head_mask",
                dtype="float32",
                axes=("batch", config.num_hidden_layers, config.num_attention_heads),
            ),
        ),
        outputs=tuple(
            TensorSpec(
                name=hidden_state_name(layer), dtype=dtype, axes=("tokens", config.hidden_size)
            )
            for layer in range(config.num_hidden_layers + 1)
        ),
    )


def attention_signature(
    config: EncoderConfig, parameters: dict[str, tuple[int, ...]]
) -> GraphSignature:
    """Query states `[B, T, H]`, key states `[B, S, H]` and n heads' parameters → `[B, n, T, S]`.

    Args:
        config: the encoder's.
        parameters: name → shape of one head's parameter; the graph takes `[n, …]`.

    """
    states = [
        TensorSpec(name=name, dtype="float32", axes=("batch", axis, config.hidden_size))
        for name, axis in STATES.items()
    ]
    heads = [
        TensorSpec(name=name, dtype="float32", axes=("heads", *shape))
        for name, shape in parameters.items()
    ]
    weights = TensorSpec(
        name="attention", dtype="float32", axes=("batch", "heads", "queries", "keys")
    )
    return GraphSignature(inputs=(*states, *heads), outputs=(weights,))


def value_norms_signature(
    config: EncoderConfig, parameters: dict[str, tuple[int, ...]]
) -> GraphSignature:
    """Key states `[S, H]` and n heads' parameters → `value_products` `[S, n, n]`.

    Args:
        config: the encoder's.
        parameters: name → shape of one head's parameter; the graph takes `[n, …]`.

    """
    states = TensorSpec(name="key_states", dtype="float32", axes=("keys", config.hidden_size))
    heads = [
        TensorSpec(name=name, dtype="float32", axes=("heads", *shape))
        for name, shape in parameters.items()
    ]
    products = TensorSpec(name="value_products", dtype="float32", axes=("keys", "heads", "heads"))
    return GraphSignature(inputs=(states, *heads), outputs=(products,))


def head_scores_signature(
    config: EncoderConfig, parameters: dict[str, tuple[int, ...]]
) -> GraphSignature:
    """States `[S, H]` and n heads' parameters → queries, keys and `[n, S, S]` scores.

    Args:
        config: the encoder's.
        parameters: as for `attention_signature`.

    """
    states = TensorSpec(name="states", dtype="float32", axes=("keys", config.hidden_size))
    heads = [
        TensorSpec(name=name, dtype="float32", axes=("heads", *shape))
        for name, shape in parameters.items()
    ]
    vectors = [
        TensorSpec(name=name, dtype="float32", axes=("heads", "keys", parameters[weight][0]))
        for name, weight in (("queries", "query_weight"), ("keys", "key_weight"))
    ]
    scores = TensorSpec(name="scores", dtype="float32", axes=("heads", "keys", "keys"))
    return GraphSignature(inputs=(states, *heads), outputs=(*vectors, scores))


def device_attention_signature(
    config: EncoderConfig, parameters: dict[str, tuple[int, ...]], dtype: Float
) -> GraphSignature:
    """Query states `[T, H]`, key states `[S, H]`, heads `[n]` and parameters → `[n, T, S]`.

    Args:
        config: the encoder's.
        parameters: name → shape of one head's parameter; the graph takes `[N, …]`.
        dtype: of the parameters, but for those of `IN_FLOAT32`.

    """
    states = [
        TensorSpec(name=name, dtype="float32", axes=(axis, config.hidden_size))
        for name, axis in STATES.items()
    ]
    heads = TensorSpec(name="heads", dtype="int64", axes=("heads",))
    every = [
        TensorSpec(
            name=name,
            dtype="float32" if name in IN_FLOAT32 else dtype,
            axes=(config.num_attention_heads, *shape),
        )
        for name, shape in parameters.items()
    ]
    weights = TensorSpec(name="attention", dtype="float32", axes=("heads", "queries", "keys"))
    return GraphSignature(inputs=(*states, heads, *every), outputs=(weights,))


def device_pooling_signature(config: EncoderConfig, dtype: Float) -> GraphSignature:
    """A hidden state `[T, H]` of `dtype` and n sets of its rows → `vectors` `[n, H]`."""
    hidden = TensorSpec(name="hidden_state", dtype=dtype, axes=("tokens", config.hidden_size))
    sets = [
        TensorSpec(name=name, dtype="int64", axes=("columns" if name == "columns" else "vectors",))
        for name in (
            "first_row",
            "row_count",
            "columns",
            "maximum",
            "first_weight",
            "unit_features",
        )
    ]
    vectors = TensorSpec(name="vectors", dtype="float32", axes=("vectors", config.hidden_size))
    return GraphSignature(inputs=(hidden, *sets), outputs=(vectors,))


def task_signature(config: EncoderConfig, task: TaskConfig) -> GraphSignature:
    """Rows `[n, H]` → `scores`: `[n, C]`, or `[1, V]` of a text's rows."""
    rows = TensorSpec(name="rows", dtype="float32", axes=("vectors", config.hidden_size))
    count = 1 if task.kind == "sparse" else "vectors"
    scores = TensorSpec(name="scores", dtype="float32", axes=(count, task.outputs))
    return GraphSignature(inputs=(rows,), outputs=(scores,))
