"""Operators without an ONNX form on ONNX Runtime, with PyTorch as the oracle."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from model.artifact.manifest import ATTENTION_GRAPH, VALUE_NORMS_GRAPH, Artifact
from model.artifact.signature import Float, GraphSignature, TensorSpec
from model.export import lowering
from model.export.to_onnx import to_onnx


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
    return to_onnx(Calls(function).eval(), (torch.zeros(5, 4),), signature)


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

    monkeypatch.setattr(lowering, "_traced_again", again)


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
    again = mock.Mock(side_effect=lowering._traced_again)
    monkeypatch.setattr(lowering, "_traced_again", again)
    holds(exported(function), function)
    again.assert_called_once()


@pytest.mark.parametrize("name", [ATTENTION_GRAPH, VALUE_NORMS_GRAPH])
def test_a_size_that_is_a_number_whatever_the_axes_are_is_not_computed(
    tiny_artifact: Artifact, name: str
) -> None:
    """Head widths depend on the number of heads only in name, and are squeezed as constants."""
    graph = onnx.load(tiny_artifact.path(name)).graph
    assert "Shape" in {node.op_type for node in graph.node}
    assert "Squeeze" not in {node.op_type for node in graph.node}
