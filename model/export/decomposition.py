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
from model.attention.self_attention import attention_rule
from model.config.encoder import EncoderConfig
from model.decomposition.layers import LayerDecomposition, entering, values
from model.export.graphs import one_head_shapes
from model.export.to_onnx import example_of, save_graph, to_onnx


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
