"""Supervisor of workers that cannot start any more."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from model.artifact.manifest import ENCODER_DATA, Artifact
from service.errors import EngineUnavailable
from service.process import supervisor
from service.settings import Settings
from service.settings.model_group import ModelTable
from testing.process import Service, clean_environment, free_port
from tests.service.process.launched import launched

LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Program that cannot write files beyond 100,000 bytes, as on a full file system."""


def test_the_supervisor_collects_garbage_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before the start, which collects it rarely."""

    class Ended(Exception):
        """Raised by the stub of `end_start`."""

    def end_start() -> None:
        raise Ended

    monkeypatch.setattr("service.system.logs.configure", lambda *_: None)
    monkeypatch.setattr("service.system.resources.end_start", end_start)
    with pytest.raises(Ended):
        supervisor.serve(Settings(port=free_port(), workers=2), [])


@pytest.mark.anyio
async def test_settings_that_no_message_holds_are_refused(tmp_path: Path) -> None:
    prompts = {str(number): 2048 * "x" for number in range(32)}
    tables = {"a": ModelTable(source="x", prompts=prompts)}
    started = supervisor.Supervisor(Settings(workers=2, tables=tables), [], tmp_path)
    with pytest.raises(EngineUnavailable, match="a worker takes 65536: shorten the prompts"):
        await started._launch(0, restarted=False)


@pytest.mark.slow
def test_the_service_ends_when_no_worker_starts_any_more(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_artifact.folder, tmp_path / "copy"))
    with launched(copy, most_pause_seconds=0.05, most_failed_starts=2) as service:
        (copy / ENCODER_DATA).write_bytes(b"damaged")
        for worker in service.children:
            worker.kill()
        assert service.process.wait(120) == 1
        *lines, last = service.log.splitlines()
    assert last.startswith(
        f"headscope serve: workers repeatedly fail to start: {copy / ENCODER_DATA} has"
    )
    restarts = [line for line in lines if "; restarting it in" in line]
    assert len(restarts) == 2 + 1
    assert sum("ended by signal 9" in line for line in restarts) == 2


@pytest.mark.slow
def test_without_room_for_metrics_the_service_ends_with_one_line(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    port = free_port()
    flags = ["--workers", "2", "--engine", "fake", "--log-level", "error", "--port", str(port)]
    command = [sys.executable, "-c", LIMITED, "-m", "service", "serve", *flags]
    command += ["--artifact", str(tiny_artifact.folder)]
    with Service(command, port, environment=clean_environment(TMPDIR=str(tmp_path))) as service:
        assert service.process.wait(120) == 1
        line, *more = service.log.splitlines()
        assert more == []
    assert line.startswith(
        f"headscope serve: a worker cannot store its metrics: cannot write to {tmp_path}/"
    )
    assert line.endswith(": File too large")
    assert list(tmp_path.iterdir()) == []
