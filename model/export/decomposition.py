"""Decomposition graphs: one layer a call, shared by all layers of a model.

They hold no weights of their own; `model.artifact.decomposition` has their signatures.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from torch import Tensor, nn

from model.artifact.decomposition import (
    Shapes,
    decomposition_signature,
    decomposition_values_signature,
    layer_shapes,
    value_shapes,
)
from model.artifact.manifest import DECOMPOSITION_GRAPH, DECOMPOSITION_VALUES_GRAPH
from model.artifact.signature import head_scores_signature
from model.attention.positions import distances
from model.attention.self_attention import attention_rule
from model.attention.weights import Heads
from model.config.encoder import EncoderConfig
from model.decomposition.layers import LayerDecomposition, entering, values
from model.export.graphs import HeadGraph, one_head_shapes
from model.export.to_onnx import example_of, save_graph, to_onnx


class HeadScores(HeadGraph):
    """Graph from a layer's input and n heads' parameters to their queries, keys and scores."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and scores of states `[S, H]`, given parameters `[n, …]`.

        Their shapes are `[n, S, p_q]`, `[n, S, p_k]` and `[n, S, S]`.
        """
        states, *parameters = inputs
        named = dict(zip(self.parameter_names, parameters, strict=True))
        heads = Heads.from_parameters(named, self.rule)
        queries, keys = heads.projected(states[None], states[None])
        length = states.shape[0]
        scores = heads.scores(queries, keys, distances(length, length, states.device))
        # the exporter would make the size of a head depend on the number of heads
        query, key = (
            vectors.reshape(-1, length, named[weight].shape[1])
            for vectors, weight in ((queries, "query_weight"), (keys, "key_weight"))
        )
        return query, key, scores[0]


def export_head_scores(config: EncoderConfig) -> onnx.ModelProto:
    """Return the graph, with dynamic axes of tokens and heads."""
    signature = head_scores_signature(config, one_head_shapes(config))
    graph = HeadScores(attention_rule(config), signature)
    return to_onnx(graph.eval(), example_of(signature), signature)


class DecomposedLayer(nn.Module):
    """Graph of a layer: some rows of a text's parts before it to the rows after it."""

    def __init__(self, config: EncoderConfig, heads: Shapes) -> None:
        super().__init__()
        self.config = config
        self.rule = attention_rule(config)
        self.head_names = list(heads)
        self.parameter_names = list(layer_shapes(config))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return rows `[C, P, H]` after the layer; inputs as in `decomposition_signature`."""
        states, of_all, parts, rows, *parameters = inputs
        count = len(self.head_names)
        layer = LayerDecomposition(
            self.config,
            self.rule,
            dict(zip(self.head_names, parameters[:count], strict=True)),
            dict(zip(self.parameter_names, parameters[count:], strict=True)),
        )
        return layer.through(states, rows, of_all, parts)


class DecomposedValues(nn.Module):
    """Graph of a layer's values: parts that enter it to their value projections."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.parameter_names = list(value_shapes(config))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the values, after the normalised parts if the layer normalises its input."""
        parts, *parameters = inputs
        named = dict(zip(self.parameter_names, parameters, strict=True))
        normed = entering(self.config, named, parts)
        projected = values(self.config, named, normed)
        return (projected,) if self.config.layer.order == "post_norm" else (normed, projected)


def export_decomposition(config: EncoderConfig) -> onnx.ModelProto:
    """Return the graph of a layer, with dynamic keys, queries and parts."""
    heads = one_head_shapes(config)
    signature = decomposition_signature(config, heads)
    return to_onnx(DecomposedLayer(config, heads).eval(), example_of(signature), signature)


def export_decomposition_values(config: EncoderConfig) -> onnx.ModelProto:
    """Return the graph of values, with dynamic queries and parts."""
    signature = decomposition_values_signature(config)
    return to_onnx(DecomposedValues(config).eval(), example_of(signature), signature)


def save_decomposition(config: EncoderConfig, folder: Path) -> None:
    """Write both graphs of an artifact."""
    save_graph(export_decomposition(config), folder / DECOMPOSITION_GRAPH)
    save_graph(export_decomposition_values(config), folder / DECOMPOSITION_VALUES_GRAPH)
