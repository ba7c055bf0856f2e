"""Modules on ONNX Runtime against PyTorch, and graphs without traces of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from model.artifact.signature import GraphSignature, TensorSpec
from model.attention.multi_head import AttentionSizes, MultiHeadAttention, causal_mask
from model.config.encoder import NormalizerName, ScoreName
from model.export.to_onnx import save_graph, to_onnx, without_metadata


class CausalCrossAttention(nn.Module):
    """Module as in a decoder: key differs from value, with a mask and a head mask."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, attention_mask, head_mask = inputs
        mask = causal_mask(query.shape[1], key.shape[1]) & attention_mask.bool()[:, None, None, :]
        return self.attention(query, key, value, mask, head_mask)


SIZES = AttentionSizes(num_heads=3, d_q=4, d_k=5, d_v=6, p_q=2, p_k=2, p_v=3, p_o=7)
UNEQUAL = AttentionSizes(num_heads=2, d_q=4, d_k=5, d_v=6, p_q=3, p_k=2, p_v=4, p_o=3)


def module_signature(sizes: AttentionSizes) -> GraphSignature:
    queries, keys = ("batch", "queries"), ("batch", "keys")
    axes = {
        "query": (*queries, sizes.d_q),
        "key": (*keys, sizes.d_k),
        "value": (*keys, sizes.d_v),
        "attention_mask": keys,
        "head_mask": ("batch", sizes.num_heads),
        "output": (*queries, sizes.p_o),
        "weights": ("batch", sizes.num_heads, "queries", "keys"),
    }
    specs = [TensorSpec(name=name, dtype="float32", axes=each) for name, each in axes.items()]
    return GraphSignature(inputs=tuple(specs[:5]), outputs=tuple(specs[5:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "normalizer", "sizes"),
    [
        ("bilinear", "softmax", SIZES),
        ("additive", "sparsemax", UNEQUAL),
    ],
)
def test_the_attention_module_is_exported(
    score: ScoreName, normalizer: NormalizerName, sizes: AttentionSizes
) -> None:
    torch.manual_seed(0)
    module = CausalCrossAttention(MultiHeadAttention(sizes, score, normalizer)).eval()
    signature = module_signature(sizes)
    names = [spec.name for spec in signature.inputs]

    def inputs(b: int, t: int, s: int) -> tuple[Tensor, ...]:
        shapes = ((t, sizes.d_q), (s, sizes.d_k), (s, sizes.d_v))
        real = (torch.arange(s) < torch.arange(s, s - b, -1)[:, None]).long()
        return (*(torch.randn(b, *shape) for shape in shapes), real, torch.rand(b, sizes.num_heads))

    graph = to_onnx(module, inputs(2, 3, 4), signature).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    assert [item.name for item in session.get_outputs()] == ["output", "weights"]
    for b, t, s in ((2, 3, 4), (1, 7, 5), (4, 6, 9), (1, 1, 1)):
        example = inputs(b, t, s)
        feed = {name: tensor.numpy() for name, tensor in zip(names, example, strict=True)}
        with torch.inference_mode():
            expected = module(*example)
        for found, theirs in zip(session.run(None, feed), expected, strict=True):
            np.testing.assert_allclose(found, theirs.numpy(), atol=5e-5)


def test_metadata_is_stripped_everywhere() -> None:
    tensor = onnx.helper.make_tensor("w", 1, [1], [1.0])
    value = onnx.helper.make_tensor_value_info("y", 1, [1], doc_string="a path")
    node = onnx.helper.make_node("Identity", ["w"], ["y"], doc_string="a path")
    graph = onnx.helper.make_graph([node], "g", [], [value], [tensor], doc_string="a path")
    graph.value_info.append(onnx.helper.make_tensor_value_info("a path", 1, [1]))
    traced = onnx.helper.make_model(graph, doc_string="a path")
    graph = traced.graph
    for item in (traced, graph, graph.node[0], graph.output[0], graph.initializer[0]):
        item.metadata_props.add(key="stack trace", value="a path")
    assert traced.SerializeToString().count(b"a path") == 10
    assert b"a path" not in without_metadata(traced).SerializeToString()


def test_data_is_there_though_no_tensor_is_large(tmp_path: Path) -> None:
    """The manifest lists a file for a graph's weights, even if it is empty."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    same = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "same", [value], [same])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    for name in ("first.onnx", "second.onnx"):
        save_graph(model, tmp_path / name, "data")
    assert (tmp_path / "data").read_bytes() == b""
