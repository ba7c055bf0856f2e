"""Decoder graphs as PyTorch modules, their signatures, and the parameters of the heads.

Notation as in `model.decoder`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import onnx
import torch
from torch import Tensor, nn

from model.artifact.decoder_signature import (
    HeadShapes,
    Shapes,
    decoder_signature,
    decoder_signatures,
    logprobs_signature,
)
from model.artifact.signature import (
    ATTENTION_OF,
    DECODER_KINDS,
    VALUES_OF,
    Float,
    GraphName,
    GraphSignature,
    attention_signature,
    value_norms_signature,
)
from model.attention.self_attention import Relative
from model.config.decoder import DecoderConfig
from model.decoder.decoder import Decoder
from model.export.graphs import (
    constant_parameters,
    export_head_values,
    export_head_weights,
    named_heads,
)
from model.export.to_onnx import example_of, to_onnx
from model.packing import PackedBatch


class DecoderStates(nn.Module):
    """Decoder graph: packed targets and the encoder's last states to the decoder's states."""

    def __init__(self, decoder: Decoder, relative: Sequence[Relative], dtype: torch.dtype) -> None:
        """Compute in this type, with the heads' relative-position parameters as constants."""
        super().__init__()
        self.decoder = decoder
        self.dtype = dtype
        self.relative = constant_parameters(relative, dtype)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return L_d + 1 states and L_d query states, `[T, H]` each; see `decoder_signature`."""
        ids, positions, padded, packed, source_padded, encoded, mask, cross_mask = inputs
        segments = torch.zeros_like(ids)
        target = PackedBatch(ids, segments, positions, padded, packed)
        # only its grid is read
        source = PackedBatch(ids, segments, positions, source_padded, packed)
        output = self.decoder(
            target,
            source,
            *(floats.to(self.dtype) for floats in (encoded, mask, cross_mask)),
            relative=self.relative,
        )
        return (*output.hidden_states, *output.cross_queries)


class Logprobs(nn.Module):
    """Graph of the output map."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype) -> None:
        super().__init__()
        self.decoder = decoder
        self.dtype = dtype

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return log-probabilities `[n]` of labels `[n]`, given rows `[n, H]`."""
        rows, labels = inputs
        return self.decoder.logprobs(rows.to(self.dtype), labels)


def export_decoder(decoder: Decoder, dtype: Float) -> onnx.ModelProto:
    """Return the decoder graph; targets' tokens, texts and both sequences are dynamic axes."""
    signature = decoder_signature(decoder.config, dtype)
    graph = DecoderStates(_cast(decoder, dtype), decoder.relative_parameters(), _torch(dtype))
    return to_onnx(graph.eval(), example_of(signature), signature)


def export_logprobs(decoder: Decoder, dtype: Float) -> onnx.ModelProto:
    """Return the graph of the output map, with a dynamic axis of rows."""
    signature = logprobs_signature(decoder.config)
    graph = Logprobs(_cast(decoder, dtype), _torch(dtype))
    return to_onnx(graph.eval(), example_of(signature), signature)


def export_decoder_heads(config: DecoderConfig) -> dict[GraphName, onnx.ModelProto]:
    """Return the graphs of maps and values of the decoder's self-attention and cross-attention."""
    decoder, shapes = _one_layer(config)
    graphs: dict[GraphName, onnx.ModelProto] = {}
    rules = decoder.rule, decoder.cross_rule
    for kind, rule, of_kind in zip(DECODER_KINDS, rules, shapes, strict=True):
        maps = attention_signature(config.layers, of_kind.maps)
        values = value_norms_signature(config.layers, of_kind.values)
        graphs[ATTENTION_OF[kind]] = export_head_weights(rule, maps)
        graphs[VALUES_OF[kind]] = export_head_values(rule, values)
    return graphs


def decoder_signatures_of(config: DecoderConfig, dtype: Float) -> dict[GraphName, GraphSignature]:
    """Return the signatures of a decoder's graphs, at the precision of its weights."""
    return decoder_signatures(config, dtype, *_one_layer(config)[1])


def decoder_head_parameters(decoder: Decoder) -> dict[str, Tensor]:
    """Return all parameters of the heads of every layer's self- and cross-attention."""
    heads = decoder.config.layers.num_attention_heads
    return {
        **named_heads(decoder.head_parameters(), decoder.value_parameters(), heads, "decoder"),
        **named_heads(
            decoder.cross_head_parameters(), decoder.cross_value_parameters(), heads, "cross"
        ),
    }


def _one_layer(config: DecoderConfig) -> tuple[Decoder, tuple[HeadShapes, HeadShapes]]:
    """Return a one-layer decoder without storage, and its heads' shapes, as `DECODER_KINDS`."""
    layers = config.layers.model_copy(update={"num_hidden_layers": 1})
    with torch.device("meta"):
        decoder = Decoder(config.model_copy(update={"layers": layers}))
        own = decoder.head_parameters()[0], decoder.value_parameters()[0]
        cross = decoder.cross_head_parameters()[0], decoder.cross_value_parameters()[0]
    return decoder, (HeadShapes(*map(_shapes, own)), HeadShapes(*map(_shapes, cross)))


def _shapes(parameters: dict[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape[1:]) for name, tensor in parameters.items()}


def _cast(decoder: Decoder, dtype: Float) -> Decoder:
    return copy.deepcopy(decoder).half() if dtype == "float16" else decoder


def _torch(dtype: Float) -> torch.dtype:
    return torch.float16 if dtype == "float16" else torch.float32
