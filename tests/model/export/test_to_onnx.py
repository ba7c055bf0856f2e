"""Operators and modules on ONNX Runtime against PyTorch, and graphs without redundant work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxscript.rewriter._rewrite_rule import RewriteRule
from torch import Tensor, nn
from torch.onnx._internal.exporter import _registration
from torch.onnx._internal.fx.passes.type_promotion import _TypePromotionInterpreter

from model.artifact.manifest import Artifact
from model.artifact.signature import Float, GraphSignature, TensorSpec
from model.attention.multi_head import AttentionSizes, MultiHeadAttention
from model.config.encoder import NormalizerName, ScoreName
from model.export import torch_exporter
from model.export.to_onnx import save_graph, to_onnx, without_metadata


class CausalCrossAttention(nn.Module):
    """Module as in a decoder: key differs from value, with a mask and a head mask."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, attention_mask, head_mask = inputs
        causal = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril()
        mask = causal & attention_mask.bool()[:, None, None, :]
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

    graph = to_onnx(module, signature, example=inputs(2, 3, 4)).SerializeToString()
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


class Calls(nn.Module):
    """Function of one tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(inputs[0])


def exported(function: Callable[[Tensor], Tensor], y: Float = "float32") -> onnx.ModelProto:
    x = TensorSpec(name="x", dtype="float32", axes=("rows", 4))
    result = TensorSpec(name="y", dtype=y, axes=("rows", 4))
    signature = GraphSignature(inputs=(x,), outputs=(result,))
    return to_onnx(Calls(function), signature, example=(torch.zeros(5, 4),))


def holds(graph: onnx.ModelProto, function: Callable[[Tensor], Tensor]) -> None:
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for rows in (1, 7):
        x = torch.linspace(-3, 3, 4 * rows).reshape(rows, 4)
        (found,) = session.run(None, {"x": x.numpy()})
        expected = function(x.clone()).numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def replaced(x: Tensor) -> Tensor:
    """Record all replaced operators of `_SAME`."""
    near = (x > -2) & (x < 2)
    own = x.to(torch.float32).flatten(0, -2).flatten().reshape(-1, 4)
    return 2 - own.square() + near.to(torch.float32)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a program is not traced again."""

    def again(*_: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(torch_exporter, "_traced_again", again)


@pytest.mark.usefixtures("once")
def test_operators_that_have_another_are_not_traced_again() -> None:
    holds(exported(replaced), replaced)


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_output_may_be_what_is_left_out(dtype: Float) -> None:
    def cast(x: Tensor) -> Tensor:
        return (x + 1).to(getattr(torch, dtype))

    holds(exported(cast, dtype), cast)


def scaled_difference(x: Tensor) -> Tensor:
    return torch.rsub(x, 1, alpha=2)


def changed_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 1].add_(1)
    return y


@pytest.mark.parametrize("function", [scaled_difference, changed_in_place])
def test_every_other_is_traced_again(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    again = mock.Mock(side_effect=torch_exporter._traced_again)
    monkeypatch.setattr(torch_exporter, "_traced_again", again)
    holds(exported(function), function)
    again.assert_called_once()


@pytest.mark.parametrize("name", ["attention.onnx", "value_norms.onnx"])
def test_a_size_that_is_a_number_whatever_the_axes_are_is_not_computed(
    tiny_artifact: Artifact, name: str
) -> None:
    """Head widths depend on the number of heads only in name, and are squeezed as constants."""
    graph = onnx.load(tiny_artifact.path(name)).graph
    assert "Shape" in {node.op_type for node in graph.node}
    assert "Squeeze" not in {node.op_type for node in graph.node}


class Rewritten(nn.Module):
    """Module with promoted types, and operators that the optimizer rewrites."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        counted = (x > 0).long() + torch.arange(x.shape[0])[:, None]
        promoted = counted * x + (counted + 0.5).to(torch.float16)
        turned = promoted.T.unsqueeze(0).unsqueeze(0).squeeze(0).transpose(1, 2).reshape(-1)
        return self.linear(turned.reshape(-1, 2, 2).flatten(1)).to(torch.float64).float()


def exported_graph() -> onnx.ModelProto:
    torch.manual_seed(0)
    specs = [TensorSpec(name=name, dtype="float32", axes=("rows", 4)) for name in "xy"]
    signature = GraphSignature(inputs=(specs[0],), outputs=(specs[1],))
    return to_onnx(Rewritten(), signature, example=(torch.zeros(5, 4),))


def test_the_bytes_are_those_of_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    promoted, tried = [], []
    promote = _TypePromotionInterpreter.run_node

    def counted_promotion(interpreter: object, node: torch.fx.Node) -> object:
        promoted.append(node)
        return promote(interpreter, node)

    def counted_rule(rule: RewriteRule, *where: object, **how: object) -> object:
        found = torch_exporter._try_rule(rule, *where, **how)
        tried.append(found is not None)
        return found

    quick = exported_graph()
    with monkeypatch.context() as patched:
        patched.setattr(torch_exporter, "_promoted", counted_promotion)
        patched.setattr(torch_exporter, "_try_rule_of_operator", counted_rule)
        whole = exported_graph()
    assert promoted
    assert any(tried)
    assert quick.SerializeToString() == whole.SerializeToString()
    casts = [node for node in quick.graph.node if node.op_type == "Cast"]
    assert len(casts) >= 4, "types were promoted"


def test_the_table_of_operators_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch builds the table for every graph; the graph is the same."""
    made, make = [], _registration.onnxscript_apis.get_torchlib_ops
    monkeypatch.setattr(
        _registration.onnxscript_apis, "get_torchlib_ops", lambda: made.append(1) or make()
    )
    monkeypatch.setattr(
        torch_exporter,
        "_operator_table",
        functools.cache(torch_exporter._operator_table.__wrapped__),
    )
    graphs = [exported_graph().SerializeToString() for _ in range(2)]
    assert len(made) == 1
    assert graphs[0] == graphs[1]
