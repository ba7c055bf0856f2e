"""Decoder graphs as PyTorch modules, their signatures, and the parameters of the heads.

Notation as in `model.decoder`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import onnx
import torch
from torch import Tensor, nn

from model.artifact.signature import (
    ATTENTION_OF,
    DECODER_KINDS,
    VALUES_OF,
    Float,
    GraphName,
    GraphSignature,
    MapKind,
    Shapes,
    decoder_signature,
    decoder_signatures,
    logprobs_signature,
)
from model.attention.self_attention import Relative, attention_rule
from model.config.decoder import DecoderConfig
from model.decoder.decoder import Decoder
from model.decoder.layers import cross_rule
from model.export.graphs import HeadWeights, ValueProducts, constant_parameters, named_heads
from model.export.to_onnx import to_onnx
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
    graph = DecoderStates(_cast(decoder, dtype), decoder.relative_parameters(), _torch(dtype))
    return to_onnx(graph, decoder_signature(decoder.config, dtype))


def export_logprobs(decoder: Decoder, dtype: Float) -> onnx.ModelProto:
    """Return the graph of the output map, with a dynamic axis of rows."""
    graph = Logprobs(_cast(decoder, dtype), _torch(dtype))
    return to_onnx(graph, logprobs_signature(decoder.config))


def export_decoder_heads(config: DecoderConfig) -> dict[GraphName, onnx.ModelProto]:
    """Return the graphs of maps and values of the decoder's self-attention and cross-attention."""
    signatures = decoder_signatures_of(config, "float32")
    rules = {"decoder": attention_rule(config.layers), "cross": cross_rule(config)}
    graphs: dict[GraphName, onnx.ModelProto] = {}
    for kind in DECODER_KINDS:
        for names, graph in ((ATTENTION_OF, HeadWeights), (VALUES_OF, ValueProducts)):
            signature = signatures[name := names[kind]]
            graphs[name] = to_onnx(graph(rules[kind], signature), signature)
    return graphs


def decoder_signatures_of(config: DecoderConfig, dtype: Float) -> dict[GraphName, GraphSignature]:
    """Return the signatures of a decoder's graphs, at the precision of its weights."""
    layers = config.layers.model_copy(update={"num_hidden_layers": 1})
    with torch.device("meta"):
        decoder = Decoder(config.model_copy(update={"layers": layers}))
        maps = _shapes(decoder.head_parameters(), decoder.cross_head_parameters())
        values = _shapes(decoder.value_parameters(), decoder.cross_value_parameters())
    return decoder_signatures(config, dtype, maps, values)


def _shapes(*of_kinds: Sequence[dict[str, Tensor]]) -> dict[MapKind, Shapes]:
    """Return the shapes of one head's parameters, given the only layer's of both kinds of heads."""
    return {
        kind: {name: tuple(tensor.shape[1:]) for name, tensor in parameters.items()}
        for kind, (parameters,) in zip(DECODER_KINDS, of_kinds, strict=True)
    }


def decoder_head_parameters(decoder: Decoder) -> dict[str, Tensor]:
    """Return all parameters of the heads of every layer's self- and cross-attention."""
    heads = decoder.config.layers.num_attention_heads
    return {
        **named_heads(decoder.head_parameters(), decoder.value_parameters(), heads, "decoder"),
        **named_heads(
            decoder.cross_head_parameters(), decoder.cross_value_parameters(), heads, "cross"
        ),
    }


def _cast(decoder: Decoder, dtype: Float) -> Decoder:
    return copy.deepcopy(decoder).half() if dtype == "float16" else decoder


def _torch(dtype: Float) -> torch.dtype:
    return torch.float16 if dtype == "float16" else torch.float32
