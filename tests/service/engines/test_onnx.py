"""Engine of the ONNX graphs: the runtime it loads, the size of its batches, and its memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from model.runtimes.contract import Resources
from service.engines.contract import Output, Pooling, Task
from service.engines.measuring import blank_text
from service.engines.onnx import OnnxEngine
from service.engines.runtime import ran_out_of_memory
from service.errors import EngineOutOfMemory
from tests.service.harness import AnsweringEngine, assert_problem, batching, serving, text
from tests.service.pictures import pictures_of

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, artifact: Artifact) -> list[Any]:
    """Record the resources of each loaded runtime; a runtime for "cuda" reports CUDA."""
    found: list[Any] = []

    def load(_: Artifact, resources: Resources) -> Any:
        found.append(resources)
        provider = CUDA if resources.device == "cuda" else CPU
        return SimpleNamespace(
            spare_calls=0,
            attention_kernels=("FLASH_ATTENTION",),
            provider=provider,
            config=artifact.manifest.config,
        )

    monkeypatch.setattr("service.engines.onnx.load_runtime", load)
    return found


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_on_a_cpu_every_core_has_a_call(
    artifact: Artifact, asked: list[Any], threads: int | None
) -> None:
    engine = OnnxEngine(artifact, "cpu", threads)
    expected = threads or len(os.sched_getaffinity(0))
    assert asked == [Resources("cpu", expected)]
    assert (engine.name, engine.provider, engine.concurrency) == ("onnx", CPU, expected)
    assert engine.batch_tokens == 512
    assert engine.hidden_size == 128


@pytest.mark.parametrize(("threads", "calls"), [(None, 2), (5, 5)])
def test_a_device_computes_one_large_batch_while_the_next_is_prepared(
    artifact: Artifact, asked: list[Any], threads: int | None, calls: int
) -> None:
    engine = OnnxEngine(artifact, "cuda", threads, 3, 2**30, cuda_graphs=True)
    cores = threads or len(os.sched_getaffinity(0))
    assert asked == [Resources("cuda", cores, 3, 2**30, cuda_graphs=True)]
    assert (engine.provider, engine.concurrency) == (CUDA, calls)
    assert engine.batch_tokens == 16384
    assert engine.attention_kernels == ("FLASH_ATTENTION",)


STARVED = """
import resource, sys
from pathlib import Path
import numpy as np
from model.artifact.manifest import load_artifact
from service.engines.contract import Pooling, TextTask
from service.engines.onnx import OnnxEngine
from service.errors import EngineOutOfMemory
engine = OnnxEngine(load_artifact(Path(sys.argv[1])), "cpu", threads=1)
def text(n):
    return TextTask(np.zeros(n, np.int64), np.zeros(n, np.int64), pooling=Pooling(2, "mean"))
engine.run([text(4)])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, resource.RLIM_INFINITY))
try:
    engine.run([text(512)] * 64)
except EngineOutOfMemory as error:
    print("out of memory:", error.detail)
engine.run([text(4)])
print("and still there")
"""


def test_onnx_runtime_without_memory(artifact: Artifact) -> None:
    command = [sys.executable, "-c", STARVED, str(artifact.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "out of memory: CPUExecutionProvider has no memory" in done.stdout, done.stderr[-2000:]
    assert "and still there" in done.stdout


def test_pytorch_without_memory() -> None:
    import torch

    with pytest.raises(RuntimeError) as failed:
        torch.empty(2**60, dtype=torch.int8)
    assert ran_out_of_memory(failed.value)
    assert not ran_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.anyio
async def test_a_batch_without_memory_is_halved_once() -> None:
    def room_for(most: int) -> AnsweringEngine:
        def answer(tasks: Sequence[Task]) -> list[Output] | None:
            if len(tasks) > most:
                raise MemoryError
            return None

        return AnsweringEngine(answer)

    with batching(room_for(4), max_batch_tokens=64) as (batcher, recorder):
        assert len(await batcher.submit("encode", [text(8)] * 8)) == 8
        assert recorder.failed == []
    with batching(room_for(3), max_batch_tokens=64) as (batcher, recorder):
        with pytest.raises(EngineOutOfMemory):
            await batcher.submit("encode", [text(8)] * 8)
        assert len(await batcher.submit("encode", [text(8)] * 3)) == 3


@pytest.mark.anyio
async def test_a_caller_is_told_503(artifact: Artifact) -> None:
    def answer(tasks: Sequence[Task]) -> None:
        raise MemoryError

    async with serving(artifact, AnsweringEngine(answer, artifact.manifest.config)) as client:
        response = await client.post("/encode", json={"inputs": "a"})
        assert_problem(response, 503, says="no memory", error_type="Backend")


def test_only_a_picture_has_pixels(artifact: Artifact) -> None:
    pooling = Pooling(0, "cls")
    text = blank_text(artifact.manifest.config, 3, pooling)
    assert (text.tokens, text.pixels, text.pooling) == (3, None, pooling)
    picture = blank_text(pictures_of(artifact).manifest.config, 3, pooling)
    assert picture.pixels is not None
    assert picture.pixels.shape == (3, 48)
