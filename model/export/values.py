"""Graph of value products, and its parameters."""

from __future__ import annotations

import onnx
import torch
from torch import Tensor, nn

from model.artifact.signature import GraphSignature, value_norms_signature
from model.attention.self_attention import attention_rule
from model.attention.values import value_products
from model.attention.weights import AttentionRule
from model.config.encoder import EncoderConfig
from model.encoder.encoder import Encoder
from model.export.to_onnx import example_of, to_onnx


class ValueProducts(nn.Module):
    """Graph from a layer's input and n heads' parameters to inner products of their added vectors.

    It holds no weights of its own, so one graph serves every head of every layer.
    """

    def __init__(self, rule: AttentionRule, signature: GraphSignature) -> None:
        super().__init__()
        self.rule = rule
        self.parameter_names = [spec.name for spec in signature.inputs[1:]]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return products `[S, n, n]` of key states `[S, H]` and parameters `[n, …]`."""
        states, *parameters = inputs
        named = dict(zip(self.parameter_names, parameters, strict=True))
        return value_products(named, self.rule, states)


def values_signature(config: EncoderConfig) -> GraphSignature:
    """Return the signature of the graph."""
    with torch.device("meta"):
        encoder = Encoder(config.model_copy(update={"num_hidden_layers": 1}))
        (parameters,) = encoder.value_parameters()
    shapes = {name: tuple(tensor.shape[1:]) for name, tensor in parameters.items()}
    return value_norms_signature(config, shapes)


def export_value_norms(config: EncoderConfig) -> onnx.ModelProto:
    """Return the graph, with dynamic axes of keys and heads."""
    return export_head_values(attention_rule(config), values_signature(config))


def export_head_values(rule: AttentionRule, signature: GraphSignature) -> onnx.ModelProto:
    """Return the graph of heads with this rule, with dynamic axes of keys and heads."""
    graph = ValueProducts(rule, signature)
    return to_onnx(graph.eval(), example_of(signature), signature)
