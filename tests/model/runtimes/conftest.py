"""Runtimes that several files hold to the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest

from model.artifact.manifest import Artifact
from model.runtimes import onnx as onnx_runtime
from model.runtimes.contract import Resources, Runtime
from model.runtimes.registry import load_runtime
from tests.model.checkpoints import write_checkpoint

EVEN = {"hidden_size": 24, "num_attention_heads": 3}
"""Sizes of a tiny encoder that has a graph of vectors."""


@pytest.fixture(
    scope="module",
    params=[
        "onnx",
        "pytorch",
        pytest.param("fp16", marks=pytest.mark.slow),
        pytest.param("bf16", marks=pytest.mark.slow),
        pytest.param("int8", marks=pytest.mark.slow),
    ],
)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Return each runtime of the tiny BERT; fp16 is ONNX Runtime with the device code."""
    fixtures = {"onnx": "tiny_artifact", "pytorch": "tiny_artifact"}
    name = fixtures.get(request.param, f"tiny_{request.param}")
    artifact: Artifact = request.getfixturevalue(name)
    other = "pytorch" if request.param == "pytorch" else None
    return load_runtime(artifact, Resources(threads=2), name=other)


@pytest.fixture(scope="module")
def half(exported: Callable[..., Artifact], tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Return a tiny model in fp16 whose hidden size is a multiple of 8."""
    folder = write_checkpoint(tmp_path_factory.mktemp("even"), num_hidden_layers=2, **EVEN)
    return exported(folder, "even", "fp16")


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the way to CUDA, with all tensors on the CPU; tests replace the sessions."""
    upload = onnxruntime.OrtValue.ortvalue_from_numpy

    def on_the_cpu(array: Any, *_: Any) -> Any:
        return upload(array)

    monkeypatch.setattr(onnx_runtime, "choose", lambda *_: "cuda")
    monkeypatch.setattr(onnx_runtime, "_page_locked", lambda: None)
    monkeypatch.setattr(onnx_runtime, "_check_cudnn", lambda: None)
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", on_the_cpu)
