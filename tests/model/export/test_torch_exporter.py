"""Graphs exported with and without redundant work are equal."""

from __future__ import annotations

import functools

import onnx
import pytest
import torch
from onnxscript.rewriter._rewrite_rule import RewriteRule
from torch import Tensor, nn
from torch.onnx._internal.exporter import _registration
from torch.onnx._internal.fx.passes.type_promotion import _TypePromotionInterpreter

from model.artifact.signature import GraphSignature, TensorSpec
from model.export import torch_exporter
from model.export.to_onnx import to_onnx


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


def exported() -> onnx.ModelProto:
    torch.manual_seed(0)
    specs = [TensorSpec(name=name, dtype="float32", axes=("rows", 4)) for name in "xy"]
    signature = GraphSignature(inputs=(specs[0],), outputs=(specs[1],))
    return to_onnx(Rewritten().eval(), (torch.zeros(5, 4),), signature)


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

    quick = exported()
    with monkeypatch.context() as patched:
        patched.setattr(torch_exporter, "_promoted", counted_promotion)
        patched.setattr(torch_exporter, "_try_rule_of_operator", counted_rule)
        whole = exported()
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
        torch_exporter, "_operators", functools.cache(torch_exporter._operators.__wrapped__)
    )
    graphs = [exported().SerializeToString() for _ in range(2)]
    assert len(made) == 1
    assert graphs[0] == graphs[1]
