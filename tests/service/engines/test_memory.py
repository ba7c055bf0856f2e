"""Out of memory, with the runtimes' own errors: status 503, and half a batch may still fit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Output, Task
from service.engines.runtime import ran_out_of_memory
from service.errors import EngineOutOfMemory
from tests.service.harness import AnsweringEngine, assert_problem, batching, serving, text

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
