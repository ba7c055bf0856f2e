"""Process of the PyTorch engine: its imports and its end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest

from model.artifact.manifest import WEIGHTS, Artifact
from service.engines.torch import TorchEngine
from service.errors import EngineUnavailable
from tests.service.engines.processes import gone
from tests.service.harness import text

pytestmark = pytest.mark.slow
HANG_SECONDS = 60


def test_an_encoder_that_cannot_be_loaded(
    artifact: Artifact, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(artifact.folder, tmp_path / "damaged"))
    (folder / WEIGHTS).write_bytes(b"")
    with pytest.raises(EngineUnavailable, match="cannot load the model: ArtifactError"):
        TorchEngine(dataclasses.replace(artifact, folder=folder), timeout_seconds=30)
    assert "ArtifactError" in capfd.readouterr().err


def test_it_imports_nothing_of_the_current_folder_and_ends_when_closed(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model/__init__.py", "service/__init__.py", "torch.py", "numpy.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    with contextlib.closing(TorchEngine(artifact, timeout_seconds=30)) as engine:
        assert len(engine.run([text(5)])) == 1
        pid = engine.pid
        assert pid is not None
        assert psutil.Process(pid).environ()["OMP_WAIT_POLICY"] == "PASSIVE"
        assert engine.alive
    assert gone(pid)
    assert not engine.alive


ORPHAN = """
import sys
from pathlib import Path
from model.artifact.manifest import load_artifact
from service.engines.torch import TorchEngine

engine = TorchEngine(load_artifact(Path(sys.argv[1])), timeout_seconds=30)
print(engine.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_parent(artifact: Artifact) -> None:
    command = [sys.executable, "-c", ORPHAN, str(artifact.folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert not gone(worker)
        parent.kill()
    deadline = time.monotonic() + HANG_SECONDS
    while not gone(worker):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.02)


def test_the_pytorch_process_logs_as_told(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        command = [sys.executable, "-m", "service.engines.torch_process"]
        command += [str(theirs.fileno()), "1", "info", "json"]
        with subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
        ) as process:
            theirs.close()
            ours.send((str(tmp_path), []))
            assert ours.recv() == "ArtifactError"
            ours.close()
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    (line,) = [json.loads(line) for line in errors.splitlines()]
    (error,) = line["exception"]
    assert error["type"] == "model.errors.ArtifactError"
    assert error["detail"].endswith("it holds no manifest.json")
    assert error["frames"][0].startswith("service/engines/torch_process.py:")
