"""Graph of a layer's parts, which takes the layer's parameters as inputs."""

from __future__ import annotations

from pathlib import Path

import onnx
from torch import Tensor, nn

from model.artifact.layer_parts import layer_parts_signature, parameter_shapes
from model.artifact.manifest import GRAPHS
from model.attention.self_attention import attention_rule
from model.config.encoder import EncoderConfig
from model.encoder.layer_parts import ParametrizedLayer
from model.export.graphs import every_head_shape
from model.export.to_onnx import example_of, save_graph, to_onnx


class PartsOfLayer(nn.Module):
    """Graph of a step through a layer, given the layer's parameters."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.rule = attention_rule(config)
        self.head_names = list(every_head_shape(config))
        self.parameter_names = list(parameter_shapes(config))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of `layer_parts_signature` for its inputs."""
        states, head_mask, patch, *parameters = inputs
        count = len(self.head_names)
        heads = dict(zip(self.head_names, parameters[:count], strict=True))
        others = dict(zip(self.parameter_names, parameters[count:], strict=True))
        layer = ParametrizedLayer(self.config, self.rule, heads, others)
        return layer.parts(states, head_mask, patch)


def export_layer_parts(config: EncoderConfig) -> onnx.ModelProto:
    """Return the graph, with a dynamic axis of tokens."""
    signature = layer_parts_signature(config, every_head_shape(config))
    return to_onnx(PartsOfLayer(config).eval(), example_of(signature), signature)


def save_layer_parts(config: EncoderConfig, folder: Path) -> None:
    """Write the graph of an artifact.

    Raises:
        ArtifactError: the file cannot be written.

    """
    save_graph(export_layer_parts(config), folder / GRAPHS["layer_parts"])
