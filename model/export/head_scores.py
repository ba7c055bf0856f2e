"""Graph of the heads' queries, keys and scores."""

from __future__ import annotations

import onnx
from torch import Tensor, nn

from model.artifact.signature import GraphSignature, head_scores_signature
from model.attention.positions import distances
from model.attention.self_attention import attention_rule
from model.attention.weights import AttentionRule, Heads
from model.config.encoder import EncoderConfig
from model.export.graphs import one_head_shapes
from model.export.to_onnx import example_of, to_onnx


class HeadScores(nn.Module):
    """Graph from a layer's input and n heads' parameters to their queries, keys and scores.

    It holds no weights of its own, so one graph serves every head of every layer.
    """

    def __init__(self, rule: AttentionRule, signature: GraphSignature) -> None:
        super().__init__()
        self.rule = rule
        self.parameter_names = [spec.name for spec in signature.inputs[1:]]

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
