"""Graphs of an artifact as PyTorch modules, their signatures, and the parameters of the heads.

Notation of a decoder's graphs as in `model.decoder`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import onnx
import torch
from torch import Tensor, nn

from model.artifact.decomposition import layer_shapes, value_shapes
from model.artifact.signature import (
    ATTENTION_OF,
    OF_DECODER,
    STATES,
    VALUES_OF,
    Axes,
    Float,
    GraphName,
    GraphSignature,
    MapKind,
    Shapes,
    TensorSpec,
    cross_query_name,
    decoder_state_name,
    head_parameter_name,
    hidden_state_name,
    specs,
)
from model.attention.positions import distances
from model.attention.self_attention import Relative, attention_rule
from model.attention.weights import AttentionRule, Heads, attention_weights, value_products
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.decoder.decoder import Decoder
from model.decoder.layers import cross_rule
from model.decomposition.layers import LayerDecomposition, entering, values
from model.encoder.encoder import Encoder
from model.export.to_onnx import to_onnx
from model.export.vectors_graph import vectors_signature
from model.low_rank import LowRank
from model.numerics.task_head import TaskConfig
from model.packing import GridBatch, PackedBatch
from model.tasks.head import TaskModule

Compute = Callable[..., Tensor | tuple[Tensor, ...]]


class Function(nn.Module):
    """Graph of a function of its inputs, which may call modules with weights."""

    def __init__(self, compute: Compute, **modules: nn.Module) -> None:
        """Take the function, and its modules by the prefix of their weights' names."""
        super().__init__()
        self.compute = compute
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the outputs, given the inputs in the signature's order."""
        return self.compute(*inputs)


def packed_states(
    encoder: Encoder, relative: Sequence[Relative], *inputs: Tensor, three_axes: bool = False
) -> tuple[Tensor, ...]:
    """Return L + 1 hidden states `[T, H]`, given the inputs of a packed batch and a head mask.

    With three axes tokens are computed as `[1, T, H]`. `relative` are the heads' relative-position
    parameters as constants: see `constant_parameters`.
    """
    *packed, head_mask = inputs
    batch = PackedBatch(*packed)
    if three_axes:
        batch = batch._replace(
            input_ids=batch.input_ids[None],
            token_type_ids=batch.token_type_ids[None],
            position_ids=batch.position_ids[None],
            pixels=None if batch.pixels is None else batch.pixels[None],
        )
    output = encoder(batch, head_mask.to(_dtype(encoder)), relative=relative)
    states: tuple[Tensor, ...] = output.hidden_states
    return tuple(state.squeeze(0) for state in states) if three_axes else states


def grid_states(
    encoder: Encoder, relative: Sequence[Relative], *inputs: Tensor
) -> tuple[Tensor, ...]:
    """Return L + 1 hidden states `[B, S, H]`, given `GRID_INPUTS`, perhaps pixels, a head mask.

    They are not reshaped: ONNX Runtime copies an output that is a reshaped tensor.
    """
    ids, types, positions, mask, *pixels, head_mask = inputs
    batch = GridBatch(ids, types, positions, mask, mask, *pixels)
    states: tuple[Tensor, ...] = encoder(
        batch, head_mask.to(_dtype(encoder)), relative=relative
    ).hidden_states
    return states


def decoder_states(
    decoder: Decoder, relative: Sequence[Relative], *inputs: Tensor
) -> tuple[Tensor, ...]:
    """Return L_d + 1 states and L_d query states, `[T, H]` each; see `decoder_signature`."""
    ids, positions, padded, packed, source_padded, *floats = inputs
    segments = torch.zeros_like(ids)
    target = PackedBatch(ids, segments, positions, padded, packed)
    source = PackedBatch(ids, segments, positions, source_padded, packed)  # only its grid is read
    own = (tensor.to(_dtype(decoder)) for tensor in floats)
    output = decoder(target, source, *own, relative=relative)
    return (*output.hidden_states, *output.cross_queries)


def device_pooling(
    hidden_state: Tensor,
    first_row: Tensor,
    row_count: Tensor,
    columns: Tensor,
    *modes: Tensor,
) -> Tensor:
    """Return vectors `[n, H]`, given `[T, H]` and each set's rows, mode and normalisation.

    A hidden state `[B, S, H]` counts as its B · S rows. The mean of one row is that row, so the
    graph also returns the first or the last token of a text, and single rows.

    After the hidden state come `first_row` and `row_count` `[n]`; `columns`, 0 … P−1, where P is
    the largest count; `maximum` `[n]`, 0 for the mean; `first_weight` `[n]`, the first row's weight
    in a mean whose weights rise by 1 per row, 0 for equal weights; `unit_features` `[n]`, the
    number of features that become a unit vector, 0 for none.
    """
    maximum, first_weight, unit_features = modes
    hidden_state = hidden_state.flatten(0, -2)
    real = columns[None] < row_count[:, None]  # [n, P]
    rows = torch.where(real, first_row[:, None] + columns[None], 0)
    tokens = torch.index_select(hidden_state, 0, rows.flatten()).float()
    tokens = tokens.reshape(*rows.shape, -1)  # [n, P, H]
    rising = first_weight[:, None] + columns[None]
    weights = torch.where(first_weight[:, None] > 0, rising, 1).float()
    weights = torch.where(real, weights, 0.0)[..., None]  # [n, P, 1]
    real = real[..., None]
    mean = torch.where(real, tokens * weights, 0.0).sum(dim=1) / weights.sum(dim=1)
    largest = torch.where(real, tokens, torch.finfo(torch.float32).min).amax(dim=1)
    vectors = torch.where(maximum[:, None] > 0, largest, mean)
    features = torch.arange(hidden_state.shape[1])
    counted = torch.where(features < unit_features[:, None], vectors, 0.0)
    norm = counted.square().sum(dim=1, keepdim=True).sqrt().clamp_min(1e-12)
    return torch.where(unit_features[:, None] > 0, vectors / norm, vectors)


def head_weights(rule: AttentionRule, names: Sequence[str], *inputs: Tensor) -> Tensor:
    """Return maps `[B, n, T, S]` of query states `[B, T, H]`, key states `[B, S, H]`.

    The heads' parameters with these names, `[n, …]` each, follow.
    """
    queries, keys, *parameters = inputs
    heads = Heads.from_parameters(dict(zip(names, parameters, strict=True)), rule)
    return attention_weights(heads, queries, keys, in_float32=True)


def device_head_weights(rule: AttentionRule, names: Sequence[str], *inputs: Tensor) -> Tensor:
    """Return maps `[1, n, T, S]` of a hidden state `[…, H]`, its rows `[T]` and `[S]`."""
    hidden_state, query_rows, key_rows, *parameters = inputs
    tokens = hidden_state.flatten(0, -2)
    states = [torch.index_select(tokens, 0, rows)[None] for rows in (query_rows, key_rows)]
    return head_weights(rule, names, *states, *parameters)


def head_value_products(rule: AttentionRule, names: Sequence[str], *inputs: Tensor) -> Tensor:
    """Return products `[S, n, n]` of key states `[S, H]` and parameters `[n, …]`."""
    states, *parameters = inputs
    return value_products(dict(zip(names, parameters, strict=True)), rule, states)


def head_scores(
    rule: AttentionRule, names: Sequence[str], *inputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and scores of states `[S, H]`, given parameters `[n, …]`.

    Their shapes are `[n, S, p_q]`, `[n, S, p_k]` and `[n, S, S]`.
    """
    states, *parameters = inputs
    named = dict(zip(names, parameters, strict=True))
    heads = Heads.from_parameters(named, rule)
    queries, keys = heads.projected(states[None], states[None])
    length = states.shape[0]
    scores = heads.scores(queries, keys, distances(length, length, states.device))
    # the exporter would make the size of a head depend on the number of heads
    query, key = (
        vectors.reshape(-1, length, named[weight].shape[1])
        for vectors, weight in ((queries, "query_weight"), (keys, "key_weight"))
    )
    return query, key, scores[0]


def decomposed_layer(config: EncoderConfig, names: Sequence[str], *inputs: Tensor) -> Tensor:
    """Return rows `[C, P, H]` after a layer; see `decomposition_signature`.

    `names` are those of one head's parameters.
    """
    states, of_all, parts, rows, *parameters = inputs
    heads, others = parameters[: len(names)], parameters[len(names) :]
    layer = LayerDecomposition(
        config,
        attention_rule(config),
        dict(zip(names, heads, strict=True)),
        dict(zip(layer_shapes(config), others, strict=True)),
    )
    return layer.through(states, rows, of_all, parts)


def decomposed_values(config: EncoderConfig, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the values, after the normalised parts if the layer normalises its input."""
    parts, *parameters = inputs
    named = dict(zip(value_shapes(config), parameters, strict=True))
    normed = entering(config, named, parts)
    projected = values(config, named, normed)
    return (projected,) if config.layer.order == "post_norm" else (normed, projected)


class Graph(NamedTuple):
    """Graph without weights of its own: one of each serves all layers of a model."""

    compute: Compute
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def signature(self) -> GraphSignature:
        """Inputs and outputs."""
        return GraphSignature(inputs=self.inputs, outputs=self.outputs)

    def export(self) -> onnx.ModelProto:
        """Return the graph, whose every axis but the features is dynamic."""
        return to_onnx(Function(self.compute), self.signature)


MAPS = ("heads", "queries", "keys")
"""Axes of the maps of a text."""
WEIGHTLESS: tuple[GraphName, ...] = (
    *("attention", "device_attention", "device_pooling", "value_norms", "head_scores"),
    *("decomposition", "decomposition_values"),
)
"""Graphs of every encoder that hold no weights."""
GRID_INPUTS = ("input_ids", "token_type_ids", "position_ids", "attention_mask")
"""Inputs of an encoder graph whose tokens are the padded grid, int64 `[B, S]` each."""
IN_FLOAT32 = {"frequencies", "window", "input_norm_applies"}
"""Parameters of a head that are float32 in every precision: angles, distances and switches."""


def weightless_graphs(config: EncoderConfig, dtype: Float = "float32") -> dict[GraphName, Graph]:
    """Return the graphs of `WEIGHTLESS` for an encoder, at the precision of its weights."""
    rule, maps, h = attention_rule(config), one_head_shapes(config), config.hidden_size
    values = one_head_shapes(config, values=True)
    tokens = ("batch", "sequence") if dtype == "float16" else ("tokens",)
    state = specs(dtype, hidden_state=(*tokens, h))
    rows = specs("int64", query_rows=("queries",), key_rows=("keys",))
    each: Axes = ("vectors",)
    row_sets = specs("int64", first_row=each, row_count=each, columns=("columns",))
    modes = specs("int64", maximum=each, first_weight=each, unit_features=each)
    scored = specs(
        queries=("heads", "keys", maps["query_weight"][0]),
        keys=("heads", "keys", maps["key_weight"][0]),
        scores=("heads", "keys", "keys"),
    )
    graphs = {
        **graphs_of_kind("encoder", rule, h, maps, values),
        "device_attention": Graph(
            partial(device_head_weights, rule, [*maps]),
            (*state, *rows, *of_heads(maps, dtype)),
            specs(attention=(1, *MAPS)),
        ),
        "device_pooling": Graph(
            partial(device_pooling), (*state, *row_sets, *modes), specs(vectors=("vectors", h))
        ),
        "head_scores": Graph(
            partial(head_scores, rule, [*maps]), specs(states=("keys", h)) + of_heads(maps), scored
        ),
        **_decomposition_graphs(config, maps),
    }
    return {name: graphs[name] for name in WEIGHTLESS}


def graphs_of_kind(
    kind: MapKind, rule: AttentionRule, hidden_size: int, maps: Shapes, values: Shapes
) -> dict[GraphName, Graph]:
    """Return the graphs of maps and value products, given the shapes of one head's parameters."""
    states = {name: ("batch", axis, hidden_size) for name, axis in STATES.items()}
    return {
        ATTENTION_OF[kind]: Graph(
            partial(head_weights, rule, [*maps]),
            specs(**states) + of_heads(maps),
            specs(attention=("batch", *MAPS)),
        ),
        VALUES_OF[kind]: Graph(
            partial(head_value_products, rule, [*values]),
            specs(key_states=("keys", hidden_size)) + of_heads(values),
            specs(value_products=("keys", "heads", "heads")),
        ),
    }


def of_heads(shapes: Shapes, dtype: Float = "float32") -> tuple[TensorSpec, ...]:
    """Return the parameters of n heads, given the shapes of one head's."""
    return tuple(
        TensorSpec(
            name=name, dtype="float32" if name in IN_FLOAT32 else dtype, axes=("heads", *shape)
        )
        for name, shape in shapes.items()
    )


def _decomposition_graphs(config: EncoderConfig, maps: Shapes) -> dict[GraphName, Graph]:
    """Return the graphs of rows of parts after a layer, and of their values for the next one."""
    h, n, m = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    parts: Axes = ("queries", "parts", h)
    parameters = {name: (n, *shape) for name, shape in maps.items()} | layer_shapes(config)
    entering = specs(states=("keys", h), values=(m, "keys", "parts", config.head_size), parts=parts)
    normed = () if config.layer.order == "post_norm" else specs(entering=parts)
    return {
        "decomposition": Graph(
            partial(decomposed_layer, config, [*maps]),
            (*entering, *specs("int64", rows=("queries",)), *specs(**parameters)),
            specs(decomposed=parts),
        ),
        "decomposition_values": Graph(
            partial(decomposed_values, config),
            specs(parts=parts, **value_shapes(config)),
            normed + specs(values=(m, "queries", "parts", config.head_size)),
        ),
    }


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


def export_encoder(
    encoder: Encoder,
    dtype: Float = "float32",
    *,
    three_axes: bool = False,
    relative: Sequence[Relative] | None = None,
) -> onnx.ModelProto:
    """Return the encoder graph, with dynamic tokens, batch and sequence axes.

    float16 gives `grid_states`; float32 `packed_states`. `relative` are the float32 encoder's, if
    those of `encoder` are 8-bit.
    """
    relative = encoder.relative_parameters() if relative is None else relative
    signature, to_fuse = encoder_signature(encoder.config, dtype), dtype == "float16"
    served = copy.deepcopy(encoder).half() if to_fuse else encoder
    constant = constant_parameters(relative, _dtype(served))
    compute = partial(grid_states, served, constant)
    if not to_fuse:
        compute = partial(packed_states, served, constant, three_axes=three_axes)
    return to_onnx(Function(compute, encoder=served), signature, to_fuse=to_fuse)


def export_task(head: TaskModule, config: EncoderConfig) -> onnx.ModelProto:
    """Return the graph of a task head."""
    return to_onnx(Function(head, head=head), task_signature(config, head.config))


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


def decoder_head_graphs(config: DecoderConfig) -> dict[GraphName, Graph]:
    """Return the graphs of maps, then of value products, of both kinds of a decoder's heads."""
    layers = config.layers
    one_layer = layers.model_copy(update={"num_hidden_layers": 1})
    with torch.device("meta"):
        decoder = Decoder(config.model_copy(update={"layers": one_layer}))
        own = _shapes(decoder.head_parameters()), _shapes(decoder.value_parameters())
        cross = _shapes(decoder.cross_head_parameters()), _shapes(decoder.cross_value_parameters())
    graphs = graphs_of_kind("decoder", attention_rule(layers), layers.hidden_size, *own)
    graphs |= graphs_of_kind("cross", cross_rule(config), layers.hidden_size, *cross)
    return {name: graphs[name] for name in OF_DECODER if name in graphs}


def export_decoder(decoder: Decoder, dtype: Float) -> dict[GraphName, onnx.ModelProto]:
    """Return all graphs of a decoder, the two with weights first.

    Targets' tokens, texts and both sequences, or rows of the output map, are dynamic axes.
    """
    config = decoder.config
    served = copy.deepcopy(decoder).half() if dtype == "float16" else decoder
    relative = constant_parameters(decoder.relative_parameters(), _dtype(served))

    def logprobs(rows: Tensor, labels: Tensor) -> Tensor:
        return served.logprobs(rows.to(_dtype(served)), labels)

    return {
        "decoder": to_onnx(
            Function(partial(decoder_states, served, relative), decoder=served),
            decoder_signature(config, dtype),
        ),
        "logprobs": to_onnx(Function(logprobs, decoder=served), logprobs_signature(config)),
        **{name: graph.export() for name, graph in decoder_head_graphs(config).items()},
    }


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


def one_head_shapes(config: EncoderConfig, *, values: bool = False) -> Shapes:
    """Return name → shape of one head's parameter, in the order of the graph of maps or values."""
    with torch.device("meta"):
        encoder = Encoder(config.model_copy(update={"num_hidden_layers": 1}))
        return _shapes(encoder.value_parameters() if values else encoder.head_parameters())


def _shapes(layers: Sequence[Mapping[str, Tensor]]) -> Shapes:
    return {name: tuple(tensor.shape[1:]) for name, tensor in layers[0].items()}


def signatures(
    config: EncoderConfig,
    dtype: Float,
    task: TaskConfig | None = None,
    decoder: DecoderConfig | None = None,
    *,
    packed: bool = False,
) -> dict[GraphName, GraphSignature]:
    """Return the signatures of all graphs, at the precision of the weights.

    `packed` includes the graph of vectors.
    """
    found: dict[GraphName, GraphSignature] = {
        "encoder": encoder_signature(config, dtype),
        **{name: graph.signature for name, graph in weightless_graphs(config, dtype).items()},
    }
    if task is not None:
        found = {"task": task_signature(config, task), **found}
    if packed:
        found["vectors"] = vectors_signature(config)
    if decoder is None:
        return found
    heads = {name: graph.signature for name, graph in decoder_head_graphs(decoder).items()}
    of_decoder = {"decoder": decoder_signature(decoder, dtype), **heads}
    return found | of_decoder | {"logprobs": logprobs_signature(decoder)}


def head_parameters(encoder: Encoder) -> dict[str, Tensor]:
    """Return all parameters of every layer's heads, including their values', as `named_heads`."""
    heads = encoder.config.num_attention_heads
    own = named_heads(encoder.head_parameters(), encoder.value_parameters(), heads)
    return own | low_rank_parameters(encoder)


def decoder_head_parameters(decoder: Decoder) -> dict[str, Tensor]:
    """Return all parameters of the heads of every layer's self- and cross-attention."""
    heads = decoder.config.layers.num_attention_heads
    own = decoder.head_parameters(), decoder.value_parameters()
    cross = decoder.cross_head_parameters(), decoder.cross_value_parameters()
    return named_heads(*own, heads, "decoder") | named_heads(*cross, heads, "cross")


def low_rank_parameters(encoder: Encoder) -> dict[str, Tensor]:
    """Return the low-rank matrices of the heads' weights; see `model.runtimes.host_graphs`.

    They are `query_down` `[F, H]` and `query_up` `[N, p, F]`, likewise of keys and values, and
    `output_down` `[N, F, p]` and `output_up` `[H, F]`, with F low-rank features.
    """
    heads = encoder.config.num_attention_heads
    parameters = {}
    for number in range(encoder.config.num_hidden_layers):
        for role, low_rank in (encoder.layer(number).attention.low_rank or {}).items():
            down, up = cast(LowRank, low_rank).matrices
            if role == "output":
                down = down.reshape(len(down), heads, -1).transpose(0, 1)
            else:
                up = up.reshape(heads, -1, up.shape[1])
            parameters[head_parameter_name(f"{role}_down", number)] = down
            parameters[head_parameter_name(f"{role}_up", number)] = up
    return parameters


def named_heads(
    of_maps: Sequence[Mapping[str, Tensor]],
    of_values: Sequence[Mapping[str, Tensor]],
    heads: int,
    kind: MapKind = "encoder",
) -> dict[str, Tensor]:
    """Return all parameters of every layer's heads, `[N, …]` each, with shared ones repeated.

    All are copies, because layers may share parameters and a file of tensors holds each only once.
    """
    return {
        head_parameter_name(name, layer, kind): tensor.repeat_interleave(
            heads // len(tensor), dim=0
        )
        for layer, both in enumerate(zip(of_maps, of_values, strict=True))
        for name, tensor in {**both[0], **both[1]}.items()
    }


def constant_parameters(relative: Sequence[Relative], dtype: torch.dtype) -> list[Relative]:
    """Return relative-position parameters as constants of a type, shared as the layers share them.

    Runtimes do not compute products of weights alone: ONNX Runtime aborts the process on such
    products in half precision.
    """
    unique = {id(tensor): tensor for of_heads in relative for tensor in of_heads.values()}
    constant = {key: tensor.detach().to(dtype) for key, tensor in unique.items()}
    return [
        {name: constant[id(tensor)] for name, tensor in of_heads.items()} for of_heads in relative
    ]
