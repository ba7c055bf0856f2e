"""ONNX contract: names, dtypes and axes of every graph in an artifact.

docs/artifact.md describes the graphs. Inputs from the host, maps and log-probabilities are float32
in every precision. The two device graphs work on parameters and hidden states that stay on the
device; their outputs are float32 too. Axes that are strings are dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig, Part
from model.numerics.task_head import TaskConfig

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
IN_FLOAT32 = {"frequencies", "window", "input_norm_applies"}
"""Parameters of a head that are float32 in every precision: angles, distances and switches."""
GRID_INPUTS = ("input_ids", "token_type_ids", "position_ids", "attention_mask")
"""Inputs of an encoder graph whose tokens are the padded grid, int64 `[B, S]` each."""
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


def encoder_signature(config: EncoderConfig, dtype: Float = "float32") -> GraphSignature:
    """Return the signature of `encoder.onnx`.

    It maps a packed batch, with `pixels` `[T, F]` for an encoder of pictures, and `head_mask` to
    `hidden_state.0 … L`, `[T, H]` each. In float16 it maps a padded grid, `[B, S]` each and
    `pixels` `[B, S, F]`, to hidden states `[B, S, H]`.
    """
    tokens: Axes = ("tokens",)
    grid: Axes = ("batch", "sequence")
    ids = dict.fromkeys(("input_ids", "token_type_ids", "position_ids"), tokens)
    ids |= {"padded_index": grid, "packed_index": tokens}
    if dtype == "float16":
        tokens, ids = grid, dict.fromkeys(GRID_INPUTS, grid)
    features = config.pixel_features
    pixels = specs(pixels=(*tokens, features)) if features else ()
    mask = specs(head_mask=("batch", config.num_hidden_layers, config.num_attention_heads))
    states = map(hidden_state_name, range(config.num_hidden_layers + 1))
    return GraphSignature(
        inputs=(*specs("int64", **ids), *pixels, *mask),
        outputs=specs(dtype, **dict.fromkeys(states, (*tokens, config.hidden_size))),
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
    layout, tokens, features = config.attention, ("tokens",), config.pixel_features
    vectors: Axes = ("vectors", config.hidden_size)
    has_rows = config.embeddings.positions != "none" or config.type_vocab_size > 0
    has_window = any(window is not None for window in layout.windows)
    by_distance = has_window or layout.alibi or layout.bias_buckets is not None
    return GraphSignature(
        inputs=(
            *specs("int32", input_ids=tokens),
            *(specs("int32", token_type_ids=tokens) if config.adapters else ()),
            *(specs("int32", embedding_rows=tokens) if has_rows else ()),
            *(specs("int64", position_ids=tokens) if layout.rotary_bases else ()),
            *(specs(pixels=(*tokens, features)) if features else ()),
            *(specs("int32", columns=("sequence",)) if by_distance else ()),
            *specs("int32", token_offset=("batch", "sequence"), cu_seqlens=("batch+1",)),
            *specs("int32", pooled_rows=("vectors",)),
        ),
        outputs=specs(vectors=vectors, unit_vectors=vectors),
    )


def _of_heads(shapes: Shapes) -> dict[str, Axes]:
    return {name: ("heads", *shape) for name, shape in shapes.items()}


def attention_signature(config: EncoderConfig, shapes: Shapes) -> GraphSignature:
    """Return the signature of `attention.onnx`.

    It maps query states `[B, T, H]`, key states `[B, S, H]` and n heads' parameters to
    `attention` `[B, n, T, S]`. `shapes` are those of one head's parameters.
    """
    states: dict[str, Axes] = {
        name: ("batch", axis, config.hidden_size) for name, axis in STATES.items()
    }
    return GraphSignature(
        inputs=specs(**states, **_of_heads(shapes)),
        outputs=specs(attention=("batch", "heads", "queries", "keys")),
    )


def value_norms_signature(config: EncoderConfig, shapes: Shapes) -> GraphSignature:
    """Return the signature of `value_norms.onnx`.

    It maps key states `[S, H]` and n heads' parameters to `value_products` `[S, n, n]`.
    """
    return GraphSignature(
        inputs=specs(key_states=("keys", config.hidden_size), **_of_heads(shapes)),
        outputs=specs(value_products=("keys", "heads", "heads")),
    )


def head_scores_signature(config: EncoderConfig, shapes: Shapes) -> GraphSignature:
    """Return the signature of `head_scores.onnx`.

    It maps states `[S, H]` and n heads' parameters to queries, keys and scores `[n, S, S]`.
    """
    return GraphSignature(
        inputs=specs(states=("keys", config.hidden_size), **_of_heads(shapes)),
        outputs=specs(
            queries=("heads", "keys", shapes["query_weight"][0]),
            keys=("heads", "keys", shapes["key_weight"][0]),
            scores=("heads", "keys", "keys"),
        ),
    )


def device_attention_signature(
    config: EncoderConfig, shapes: Shapes, dtype: Float
) -> GraphSignature:
    """Return the signature of `device_attention.onnx`.

    It maps a hidden state, which may have more tokens, its rows of the queries and of the keys, and
    n heads' parameters to `attention` `[1, n, T, S]`.
    """
    rows: dict[str, Axes] = dict(zip(ROWS, ((axis,) for axis in STATES.values()), strict=True))
    parameters = [
        specs("float32" if name in IN_FLOAT32 else dtype, **{name: axes})
        for name, axes in _of_heads(shapes).items()
    ]
    return GraphSignature(
        inputs=(*_device_state(config, dtype), *specs("int64", **rows), *sum(parameters, ())),
        outputs=specs(attention=(1, "heads", "queries", "keys")),
    )


def _device_state(config: EncoderConfig, dtype: Float) -> tuple[TensorSpec, ...]:
    """Return the hidden state that graphs for a device read."""
    tokens = ("batch", "sequence") if dtype == "float16" else ("tokens",)
    return specs(dtype, hidden_state=(*tokens, config.hidden_size))


def device_pooling_signature(config: EncoderConfig, dtype: Float) -> GraphSignature:
    """Return the signature of `device_pooling.onnx`.

    It maps a hidden state `[T, H]`, in float16 `[B, S, H]`, and n sets of its rows to `vectors`
    `[n, H]`.
    """
    each: Axes = ("vectors",)
    rows = specs("int64", first_row=each, row_count=each, columns=("columns",))
    modes = specs("int64", maximum=each, first_weight=each, unit_features=each)
    return GraphSignature(
        inputs=(*_device_state(config, dtype), *rows, *modes),
        outputs=specs(vectors=("vectors", config.hidden_size)),
    )


def task_signature(config: EncoderConfig, task: TaskConfig) -> GraphSignature:
    """Return the signature of `task.onnx`.

    It maps rows `[n, H]`, or `[n, 2H]`, to `scores`: `[n, C]`, or `[1, V]` if the rows are of one
    text.
    """
    return GraphSignature(
        inputs=specs(rows=("vectors", task.input_size(config.hidden_size))),
        outputs=specs(scores=(1 if task.kind == "sparse" else "vectors", task.outputs)),
    )


def decoder_signature(decoder: DecoderConfig, dtype: Float = "float32") -> GraphSignature:
    """Return the signature of `decoder.onnx`.

    It maps a packed target, the positions of its source's tokens and `encoded` `[S_all, H]` to
    states `[T_all, H]`: `decoder_state.0 … L_d` and `cross_query.0 … L_d−1`.
    """
    config, tokens = decoder.layers, ("target_tokens",)
    ids = specs(
        "int64",
        input_ids=tokens,
        position_ids=tokens,
        padded_index=("batch", "target_sequence"),
        packed_index=tokens,
        source_padded_index=("batch", "sequence"),
    )
    heads: Axes = ("batch", config.num_hidden_layers, config.num_attention_heads)
    encoded: Axes = ("tokens", config.hidden_size)
    layers = range(config.num_hidden_layers)
    outputs = [*map(decoder_state_name, (*layers, len(layers))), *map(cross_query_name, layers)]
    return GraphSignature(
        inputs=(*ids, *specs(encoded=encoded, head_mask=heads, cross_head_mask=heads)),
        outputs=specs(dtype, **dict.fromkeys(outputs, (*tokens, config.hidden_size))),
    )


def logprobs_signature(decoder: DecoderConfig) -> GraphSignature:
    """Return the signature of `logprobs.onnx`.

    It maps rows `[n, H]` of the last decoder state and `labels` `[n]` to `logprobs` `[n]`.
    """
    rows = specs(rows=("vectors", decoder.layers.hidden_size))
    return GraphSignature(
        inputs=(*rows, *specs("int64", labels=("vectors",))),
        outputs=specs(logprobs=("vectors",)),
    )


def decoder_signatures(
    decoder: DecoderConfig,
    dtype: Float,
    maps: Mapping[MapKind, Shapes],
    values: Mapping[MapKind, Shapes],
) -> dict[GraphName, GraphSignature]:
    """Return the signatures of a decoder's graphs, given the parameters of each kind of heads."""
    layers = decoder.layers
    return {
        "decoder": decoder_signature(decoder, dtype),
        **{ATTENTION_OF[kind]: attention_signature(layers, maps[kind]) for kind in DECODER_KINDS},
        **{VALUES_OF[kind]: value_norms_signature(layers, values[kind]) for kind in DECODER_KINDS},
        "logprobs": logprobs_signature(decoder),
    }
