"""Graphs of an artifact as PyTorch modules, their signatures, and the parameters of the heads.

Notation of a decoder's graphs as in `model.decoder`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import onnx
import torch
from torch import Tensor, nn

from model.artifact.decomposition import (
    decomposition_signature,
    decomposition_values_signature,
    layer_shapes,
    value_shapes,
)
from model.artifact.signature import (
    ATTENTION_OF,
    DECODER_KINDS,
    VALUES_OF,
    Float,
    GraphName,
    GraphSignature,
    MapKind,
    Shapes,
    attention_signature,
    decoder_signature,
    decoder_signatures,
    device_attention_signature,
    device_pooling_signature,
    encoder_signature,
    head_parameter_name,
    head_scores_signature,
    logprobs_signature,
    task_signature,
    value_norms_signature,
    vectors_signature,
)
from model.attention.positions import distances
from model.attention.self_attention import Relative, attention_rule
from model.attention.weights import AttentionRule, Heads, attention_weights, value_products
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.decoder.decoder import Decoder
from model.decoder.layers import cross_rule
from model.decomposition.layers import LayerDecomposition, entering, values
from model.encoder.encoder import Encoder, EncoderOutput
from model.export.to_onnx import to_onnx
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


class HiddenStates(nn.Module):
    """Encoder graph: a packed batch to the tuple of all hidden states.

    The heads' relative-position parameters are constants: see `constant_parameters`.
    """

    def __init__(self, encoder: Encoder, relative: Sequence[Relative], *, three_axes: bool) -> None:
        """Compute tokens as `[T, H]`, or with three axes as `[1, T, H]`."""
        super().__init__()
        self.encoder = encoder
        self.three_axes = three_axes
        self.relative = constant_parameters(relative, encoder.embeddings.word.weight.dtype)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return L + 1 tensors `[T, H]`, given the inputs of a packed batch and a head mask."""
        *packed, head_mask = inputs
        batch = PackedBatch(*packed)
        if self.three_axes:
            batch = batch._replace(
                input_ids=batch.input_ids[None],
                token_type_ids=batch.token_type_ids[None],
                position_ids=batch.position_ids[None],
                pixels=None if batch.pixels is None else batch.pixels[None],
            )
        states = self._states(batch, head_mask)
        return tuple(state.squeeze(0) for state in states) if self.three_axes else states

    def _states(self, batch: PackedBatch, head_mask: Tensor) -> tuple[Tensor, ...]:
        head_mask = head_mask.to(self.encoder.embeddings.word.weight.dtype)
        output: EncoderOutput = self.encoder(batch, head_mask, relative=self.relative)
        return output.hidden_states


class GridStates(HiddenStates):
    """Encoder graph for a device: a padded grid to the tuple of all hidden states."""

    def __init__(self, encoder: Encoder, relative: Sequence[Relative]) -> None:
        """Compute tokens as `[B, S, H]`."""
        super().__init__(encoder, relative, three_axes=True)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return L + 1 tensors `[B, S, H]`, given `GRID_INPUTS`, perhaps pixels, a head mask.

        They are not reshaped: ONNX Runtime copies an output that is a reshaped tensor.
        """
        ids, types, positions, mask, *pixels, head_mask = inputs
        batch = GridBatch(ids, types, positions, mask, mask, *pixels)
        return self._states(batch, head_mask)


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


OF_HEADS: Mapping[GraphName, Compute] = {
    "attention": head_weights,
    "device_attention": device_head_weights,
    "value_norms": head_value_products,
    "head_scores": head_scores,
}
"""Graphs of a layer's input and n heads' parameters: one of each serves all heads of a model."""
WEIGHTLESS: tuple[GraphName, ...] = (
    *("attention", "device_attention", "device_pooling", "value_norms", "head_scores"),
    *("decomposition", "decomposition_values"),
)
"""Graphs that hold no weights of their own: one of each serves all layers of a model."""


def export_weightless(
    name: GraphName, config: EncoderConfig, dtype: Float = "float32"
) -> onnx.ModelProto:
    """Return a graph of `WEIGHTLESS`, whose every axis but the features is dynamic."""
    signature = signatures(config, dtype)[name]
    if name in OF_HEADS:
        return _of_heads(OF_HEADS[name], attention_rule(config), signature)
    compute: Mapping[GraphName, Compute] = {
        "device_pooling": partial(device_pooling),
        "decomposition": partial(decomposed_layer, config, [*one_head_shapes(config)]),
        "decomposition_values": partial(decomposed_values, config),
    }
    return to_onnx(Function(compute[name]), signature)


def _of_heads(compute: Compute, rule: AttentionRule, signature: GraphSignature) -> onnx.ModelProto:
    names = [spec.name for spec in signature.inputs if spec.axes[0] == "heads"]
    return to_onnx(Function(partial(compute, rule, names)), signature)


def export_encoder(
    encoder: Encoder,
    dtype: Float = "float32",
    *,
    three_axes: bool = False,
    relative: Sequence[Relative] | None = None,
) -> onnx.ModelProto:
    """Return the encoder graph, with dynamic tokens, batch and sequence axes.

    float16 gives `GridStates`; float32 `HiddenStates`, whose tokens are `[1, T, H]` with
    `three_axes`. `relative` are the float32 encoder's, if those of `encoder` are 8-bit.
    """
    relative = encoder.relative_parameters() if relative is None else relative
    signature = encoder_signature(encoder.config, dtype)
    if dtype == "float16":
        half = copy.deepcopy(encoder).half()
        return to_onnx(GridStates(half, relative), signature, to_fuse=True)
    return to_onnx(HiddenStates(encoder, relative, three_axes=three_axes), signature)


def export_task(head: TaskModule, config: EncoderConfig) -> onnx.ModelProto:
    """Return the graph of a task head."""
    return to_onnx(Function(head, head=head), task_signature(config, head.config))


def export_decoder(decoder: Decoder, dtype: Float) -> dict[GraphName, onnx.ModelProto]:
    """Return all graphs of a decoder.

    Targets' tokens, texts and both sequences, or rows of the output map, are dynamic axes.
    """
    config = decoder.config
    served = copy.deepcopy(decoder).half() if dtype == "float16" else decoder
    relative = constant_parameters(decoder.relative_parameters(), _dtype(served))
    own = decoder_signatures_of(config, "float32")
    rules = {"decoder": attention_rule(config.layers), "cross": cross_rule(config)}

    def logprobs(rows: Tensor, labels: Tensor) -> Tensor:
        return served.logprobs(rows.to(_dtype(served)), labels)

    return {
        "decoder": to_onnx(
            Function(partial(decoder_states, served, relative), decoder=served),
            decoder_signature(config, dtype),
        ),
        "logprobs": to_onnx(Function(logprobs, decoder=served), logprobs_signature(config)),
        **{
            names[kind]: _of_heads(compute, rules[kind], own[names[kind]])
            for kind in DECODER_KINDS
            for names, compute in (
                (ATTENTION_OF, head_weights),
                (VALUES_OF, head_value_products),
            )
        },
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
    parameters = one_head_shapes(config)
    found: dict[GraphName, GraphSignature] = {
        "encoder": encoder_signature(config, dtype),
        "attention": attention_signature(config, parameters),
        "device_attention": device_attention_signature(config, parameters, dtype),
        "device_pooling": device_pooling_signature(config, dtype),
        "value_norms": value_norms_signature(config, one_head_shapes(config, values=True)),
        "head_scores": head_scores_signature(config, parameters),
        "decomposition": decomposition_signature(config, parameters),
        "decomposition_values": decomposition_values_signature(config),
    }
    if task is not None:
        found = {"task": task_signature(config, task), **found}
    if packed:
        found["vectors"] = vectors_signature(config)
    return found | (decoder_signatures_of(decoder, dtype) if decoder else {})


def decoder_signatures_of(config: DecoderConfig, dtype: Float) -> dict[GraphName, GraphSignature]:
    """Return the signatures of a decoder's graphs, at the precision of its weights."""
    layers = config.layers.model_copy(update={"num_hidden_layers": 1})
    with torch.device("meta"):
        decoder = Decoder(config.model_copy(update={"layers": layers}))
        maps: dict[MapKind, Shapes] = {
            "decoder": _shapes(decoder.head_parameters()),
            "cross": _shapes(decoder.cross_head_parameters()),
        }
        of_values: dict[MapKind, Shapes] = {
            "decoder": _shapes(decoder.value_parameters()),
            "cross": _shapes(decoder.cross_value_parameters()),
        }
    return decoder_signatures(config, dtype, maps, of_values)


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
