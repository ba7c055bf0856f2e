"""The graphs of a decomposition: one layer a call, of any model of one kind.

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
    """Some rows of a text's parts through a layer."""

    def __init__(self, config: EncoderConfig, heads: Shapes) -> None:
        super().__init__()
        self.config = config
        self.rule = attention_rule(config)
        self.head_names = list(heads)
        self.parameter_names = list(layer_shapes(config))

    def forward(self, *inputs: Tensor) -> Tensor:
        """States, values, parts, rows, parameters of heads and of the layer → `[C, P, H]`."""
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
    """Parts to what the heads of a layer project of them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.parameter_names = list(value_shapes(config))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Parts and parameters → `[C, P, H]` as they enter, where normalised, and values."""
        parts, *parameters = inputs
        named = dict(zip(self.parameter_names, parameters, strict=True))
        normed = entering(self.config, named, parts)
        found = values(self.config, named, normed)
        return (found,) if self.config.layer.order == "post_norm" else (normed, found)


def export_decomposition(config: EncoderConfig) -> onnx.ModelProto:
    """The graph of a layer, with dynamic keys, queries and parts."""
    heads = one_head_shapes(config)
    signature = decomposition_signature(config, heads)
    return to_onnx(DecomposedLayer(config, heads).eval(), example_of(signature), signature)


def export_decomposition_values(config: EncoderConfig) -> onnx.ModelProto:
    """The graph of values, with dynamic queries and parts."""
    signature = decomposition_values_signature(config)
    return to_onnx(DecomposedValues(config).eval(), example_of(signature), signature)


def save_decomposition(config: EncoderConfig, folder: Path) -> None:
    """Write both graphs of an artifact.

    Raises:
        ArtifactError: a file cannot be written.

    """
    save_graph(export_decomposition(config), folder / DECOMPOSITION_GRAPH)
    save_graph(export_decomposition_values(config), folder / DECOMPOSITION_VALUES_GRAPH)
