"""ONNX contract: names, dtypes and axes of every graph in an artifact.

* `encoder.onnx`: token ids to all hidden states;
* `vectors.onnx`: token ids to one vector per text, on a GPU; absent for some families;
* `attention.onnx`: one layer's inputs and the requested heads' parameters to attention weights;
* `device_attention.onnx`: the same from rows of a hidden state that stays on a device;
* `device_pooling.onnx`: some tokens of a hidden state to one vector;
* `value_norms.onnx`: a layer's input and heads' value and output parameters to inner products of
  the vectors that those heads add for each token;
* `head_scores.onnx`: the same input and heads' parameters to their queries, keys and scores;
* `decomposition.onnx`, `decomposition_values.onnx`: shares of input tokens in a layer's states, and
  its parameters, to the shares after it: see `model.artifact.decomposition`;
* `task.onnx`: rows of the last hidden state to a task head's outputs, always in float32.

`model.artifact.decoder_signature` has a decoder's graphs.

The two device graphs work on parameters and hidden states that stay on the device; their outputs
are float32 in every precision. Axes that are strings are dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from model.config.encoder import EncoderConfig
from model.numerics.task_head import TaskConfig

Float = Literal["float32", "float16"]
Dtype = Literal["int64", "int32"] | Float
"""Data type of an input or output."""
STATES = {"query_states": "queries", "key_states": "keys"}
"""Inputs of the attention graphs, which a layer's heads project → their token axes."""
ROWS = ("query_rows", "key_rows")
"""Inputs of the attention graph for a device: rows of a hidden state for each of `STATES`."""
IN_FLOAT32 = {"frequencies", "window", "input_norm_applies"}
"""Parameters of a head that are float32 in every precision: angles, distances and switches."""
GRID_INPUTS = ("input_ids", "token_type_ids", "position_ids", "attention_mask")
"""Inputs of an encoder graph whose tokens are the padded grid, int64 `[B, S]` each."""
MapKind = Literal["encoder", "decoder", "cross"]
"""Kind of heads: the encoder's, the decoder's self-attention, or its cross-attention."""
DECODER_KINDS: tuple[MapKind, MapKind] = ("decoder", "cross")
"""Kinds of a decoder's heads."""
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


class TensorSpec(BaseModel):
    """Input or output of a graph."""

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
    """Return the name of the encoder graph's output for hidden state `layer`, 0 … L."""
    return f"hidden_state.{layer}"


def head_parameter_name(parameter: str, layer: int, kind: MapKind = "encoder") -> str:
    """Return the key of `parameter` of a layer's heads in a file of heads; axis 0 is heads."""
    return f"{parameter}.{layer}" if kind == "encoder" else f"{kind}.{parameter}.{layer}"


def encoder_signature(config: EncoderConfig, dtype: Float = "float32") -> GraphSignature:
    """Return the signature of `encoder.onnx`.

    It maps a packed batch, with `pixels` `[T, F]` for an encoder of pictures, and `head_mask` to
    `hidden_state.0 … L`, `[T, H]` each. In float16 it maps a padded grid, `[B, S]` each and
    `pixels` `[B, S, F]`, to hidden states `[B, S, H]`.
    """
    tokens: tuple[str, ...] = ("tokens",)
    grid = ("batch", "sequence")
    axes = dict.fromkeys(("input_ids", "token_type_ids", "position_ids"), tokens)
    axes |= {"padded_index": grid, "packed_index": tokens}
    if dtype == "float16":
        tokens = grid
        axes = dict.fromkeys(GRID_INPUTS, grid)
    pixels = TensorSpec(name="pixels", dtype="float32", axes=(*tokens, config.pixel_features))
    return GraphSignature(
        inputs=(
            *(TensorSpec(name=name, dtype="int64", axes=axes[name]) for name in axes),
            *((pixels,) if config.pixel_features else ()),
            TensorSpec(
                name="head_mask",
                dtype="float32",
                axes=("batch", config.num_hidden_layers, config.num_attention_heads),
            ),
        ),
        outputs=tuple(
            TensorSpec(
                name=hidden_state_name(layer),
                dtype=dtype,
                axes=(*tokens, config.hidden_size),
            )
            for layer in range(config.num_hidden_layers + 1)
        ),
    )


PackedPooling = Literal["mean", "cls", "last"]
PACKED_POOLINGS: tuple[PackedPooling, ...] = get_args(PackedPooling)
"""Poolings that a graph of vectors computes."""


def vectors_signature(config: EncoderConfig) -> GraphSignature:
    """Return the signature of `vectors.onnx`.

    It maps T tokens of B texts, end to end, to `vectors` `[n, H]` of the n texts whose
    `pooled_rows` are given, and to the same scaled to unit length. Ids are int32:

        input_ids         [T]
        token_type_ids    [T], with adapters
        embedding_rows    [T], row of a segment's and a position's embedding in their common table
        position_ids      [T], int64, with rotary positions
        pixels            [T, F], float32, of pictures
        columns           [S], 0 … S − 1 and at most M − 1, if scores depend on distances
        token_offset      [B, S], positions of the grid `[B, S]` with a token, then those without
        cu_seqlens        [B + 1], first token of each text, and T
        pooled_rows       [n], the first token of a text; the last one if it is pooled
    """
    layout, tokens = config.attention, ("tokens",)
    has_rows = config.embeddings.positions != "none" or config.type_vocab_size > 0
    has_window = any(window is not None for window in layout.windows)
    by_distance = has_window or layout.alibi or layout.bias_buckets is not None
    optional: dict[str, tuple[bool, Dtype, tuple[int | str, ...]]] = {
        "token_type_ids": (config.adapters is not None, "int32", tokens),
        "embedding_rows": (has_rows, "int32", tokens),
        "position_ids": (bool(layout.rotary_bases), "int64", tokens),
        "pixels": (bool(config.pixel_features), "float32", (*tokens, config.pixel_features)),
        "columns": (by_distance, "int32", ("sequence",)),
    }
    ranges: dict[str, tuple[int | str, ...]] = {
        "token_offset": ("batch", "sequence"),
        "cu_seqlens": ("batch+1",),
        "pooled_rows": ("vectors",),
    }
    return GraphSignature(
        inputs=(
            TensorSpec(name="input_ids", dtype="int32", axes=tokens),
            *(
                TensorSpec(name=name, dtype=dtype, axes=axes)
                for name, (present, dtype, axes) in optional.items()
                if present
            ),
            *(TensorSpec(name=name, dtype="int32", axes=axes) for name, axes in ranges.items()),
        ),
        outputs=tuple(
            TensorSpec(name=name, dtype="float32", axes=("vectors", config.hidden_size))
            for name in ("vectors", "unit_vectors")
        ),
    )


def attention_signature(
    config: EncoderConfig, parameters: dict[str, tuple[int, ...]]
) -> GraphSignature:
    """Return the signature of `attention.onnx`.

    It maps query states `[B, T, H]`, key states `[B, S, H]` and n heads' parameters to `attention`
    `[B, n, T, S]`. `parameters` are name → shape of one head's; the graph takes `[n, …]`.
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
    """Return the signature of `value_norms.onnx`.

    It maps key states `[S, H]` and n heads' parameters to `value_products` `[S, n, n]`.
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
    """Return the signature of `head_scores.onnx`.

    It maps states `[S, H]` and n heads' parameters to queries, keys and scores `[n, S, S]`.
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
    """Return the signature of `device_attention.onnx`.

    It maps a hidden state, which may have more tokens, its rows of the queries and of the keys, and
    n heads' parameters to `attention` `[1, n, T, S]`.
    """
    rows = [
        TensorSpec(name=name, dtype="int64", axes=(axis,))
        for name, axis in zip(ROWS, STATES.values(), strict=True)
    ]
    parameter_specs = [
        TensorSpec(
            name=name,
            dtype="float32" if name in IN_FLOAT32 else dtype,
            axes=("heads", *shape),
        )
        for name, shape in parameters.items()
    ]
    weights = TensorSpec(name="attention", dtype="float32", axes=(1, "heads", "queries", "keys"))
    state = device_state(config, dtype)
    return GraphSignature(inputs=(state, *rows, *parameter_specs), outputs=(weights,))


def device_state(config: EncoderConfig, dtype: Float) -> TensorSpec:
    """Return the hidden state that graphs for a device read."""
    tokens = ("batch", "sequence") if dtype == "float16" else ("tokens",)
    return TensorSpec(name="hidden_state", dtype=dtype, axes=(*tokens, config.hidden_size))


def device_pooling_signature(config: EncoderConfig, dtype: Float) -> GraphSignature:
    """Return the signature of `device_pooling.onnx`.

    It maps a hidden state `[T, H]`, in float16 `[B, S, H]`, and n sets of its rows to `vectors`
    `[n, H]`.
    """
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
    return GraphSignature(inputs=(device_state(config, dtype), *sets), outputs=(vectors,))


def task_signature(config: EncoderConfig, task: TaskConfig) -> GraphSignature:
    """Return the signature of `task.onnx`.

    It maps rows `[n, H]`, or `[n, 2H]`, to `scores`: `[n, C]`, or `[1, V]` if the rows are of one
    text.
    """
    size = task.input_size(config.hidden_size)
    rows = TensorSpec(name="rows", dtype="float32", axes=("vectors", size))
    count = 1 if task.kind == "sparse" else "vectors"
    scores = TensorSpec(name="scores", dtype="float32", axes=(count, task.outputs))
    return GraphSignature(inputs=(rows,), outputs=(scores,))
