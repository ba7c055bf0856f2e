"""PyTorch process of all models, which ends when idle and with its last engine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.engines.torch import TorchEngine, TorchHosts
from service.errors import EngineUnavailable
from tests.service.engines.processes import gone
from tests.service.harness import text

pytestmark = pytest.mark.slow
HANG_SECONDS = 60


@pytest.fixture
def twins(artifact: Artifact, tmp_path: Path) -> tuple[Artifact, Artifact]:
    """Return two artifacts, the second a copy of the first."""
    folder = Path(shutil.copytree(artifact.folder, tmp_path / "copy"))
    return artifact, dataclasses.replace(artifact, folder=folder)


@contextlib.contextmanager
def both(twins: tuple[Artifact, Artifact], hosts: TorchHosts) -> Iterator[list[TorchEngine]]:
    engines = [TorchEngine(twin, 30, hosts) for twin in twins]
    yield engines
    for engine in engines:
        engine.close()


def test_models_share_a_process_that_ends_with_the_last(twins: tuple[Artifact, Artifact]) -> None:
    with both(twins, TorchHosts()) as (first, second):
        pid = first.pid
        assert pid is not None
        assert pid == second.pid
        found = [engine.run([text(5)])[0].pooled for engine in (first, second)]
        np.testing.assert_array_equal(*found)
        first.close()
        assert not first.alive
        assert second.alive
        assert len(second.run([text(5)])) == 1
    assert gone(pid)


def test_a_process_that_dies_is_replaced_for_all(twins: tuple[Artifact, Artifact]) -> None:
    hosts = TorchHosts()
    with both(twins, hosts) as (first, second):
        pid = first.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for engine in (first, second):
            with pytest.raises(EngineUnavailable, match="has ended"):
                engine.run([text(5)])
            assert not engine.alive
        with both(twins, hosts) as engines:
            assert len({engine.pid for engine in engines} - {pid}) == 1
            first.close()  # whose process is another
            assert all(engine.alive for engine in engines)


def test_an_idle_process_ends_and_the_next_batch_starts_another(
    artifact: Artifact, onnx_engine: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is alive throughout, also to a reader that found the process before its end."""
    ended, poll, wait = threading.Event(), subprocess.Popen.poll, subprocess.Popen.wait
    while_ending: list[bool] = []
    pids: list[int] = []

    def late_poll(process: subprocess.Popen[bytes]) -> int | None:
        if threading.current_thread() is threading.main_thread():
            assert ended.wait(HANG_SECONDS), "an idle process stays"
        return poll(process)

    def watched_wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        code = wait(process, timeout)
        while_ending.append(engine.alive)
        pids.append(process.pid)
        ended.set()
        return code

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "poll", late_poll)
        patched.setattr(subprocess.Popen, "wait", watched_wait)
        engine = TorchEngine(artifact, 30, TorchHosts(idle_seconds=0.3))
        assert engine.alive
        assert ended.wait(HANG_SECONDS)
    with contextlib.closing(engine):
        assert while_ending == [True]
        (pid,) = pids
        assert gone(pid)
        assert engine.alive
        found, expected = (one.run([text(5)])[0].pooled for one in (engine, onnx_engine))
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert engine.pid not in (None, pid)
    assert not engine.alive
