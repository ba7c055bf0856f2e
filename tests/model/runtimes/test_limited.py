"""Time limits for calls of graphs that never end."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from model.errors import ModelError
from model.runtimes import onnx as runtime
from model.runtimes.registry import trial


def graph_with_loop(path: Path, condition: str) -> Path:
    """Write a graph of one Loop that ends when its counter is 3 (`until`), or never (`always`)."""
    go = helper.make_node("Less", ["step", "three"], ["go"])
    if condition == "always":
        go = helper.make_node("Identity", ["before"], ["go"])
    body = helper.make_graph(
        [go, helper.make_node("Add", ["state", "one"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("before", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor("three", TensorProto.INT64, [], [3]),
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1])],
        [helper.make_tensor("true", TensorProto.BOOL, [], [True])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, path)
    return path


def test_a_loop_that_ends_is_computed(tmp_path: Path) -> None:
    path = graph_with_loop(tmp_path / "a.onnx", "until")
    found = trial(path, {"x": np.zeros(1, np.int64)})
    assert found["y"].tolist() == [4]  # steps 0 to 3, by ONNX's definition of Loop


def test_a_loop_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "TRIAL_SECONDS", 0.3)
    path = graph_with_loop(tmp_path / "a.onnx", "always")
    started = time.monotonic()
    with pytest.raises(ModelError, match=r"within 0\.3 s: look for an endless Loop"):
        trial(path, {"x": np.zeros(1, np.int64)})
    assert time.monotonic() - started < 30
