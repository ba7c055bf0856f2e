"""Engine of the ONNX graphs: the runtime it loads, and the size of its batches."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> list[Any]:
    """Record the arguments of each loaded runtime; a runtime for "cuda" reports CUDA."""
    found: list[Any] = []

    def load(*arguments: Any) -> Any:
        found.append(arguments)
        provider = CUDA if arguments[1] == "cuda" else CPU
        return SimpleNamespace(spare_calls=0, provider=provider, config=artifact.manifest.config)

    monkeypatch.setattr("service.engines.onnx.load_runtime", load)
    return found


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_on_a_cpu_every_core_has_a_call(
    artifact: Artifact, asked: list[Any], threads: int | None
) -> None:
    engine = OnnxEngine(artifact, "cpu", threads)
    expected = threads or len(os.sched_getaffinity(0))
    assert asked == [(artifact, "cpu", expected, 0, None)]
    assert (engine.name, engine.provider, engine.concurrency) == ("onnx", CPU, expected)
    assert engine.batch_tokens == 512
    assert engine.hidden_size == 128


@pytest.mark.parametrize(("threads", "calls"), [(None, 2), (5, 5)])
def test_a_device_computes_one_large_batch_while_the_next_is_prepared(
    artifact: Artifact, asked: list[Any], threads: int | None, calls: int
) -> None:
    engine = OnnxEngine(artifact, "cuda", threads, 3, 2**30)
    ((_, device, _, device_id, memory),) = asked
    assert (device, device_id, memory) == ("cuda", 3, 2**30)
    assert (engine.provider, engine.concurrency) == (CUDA, calls)
    assert engine.batch_tokens == 16384
