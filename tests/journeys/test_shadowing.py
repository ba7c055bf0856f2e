"""Service that starts in a folder with unrelated `model.py` and `service/`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from model.artifact.manifest import Artifact
from testing.process import Service, free_port

pytestmark = pytest.mark.e2e

FOREIGN = "import pathlib; pathlib.Path(__file__).with_suffix('.ran').touch()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, whose modules leave a file when they are imported."""
    (tmp_path / "model.py").write_text(FOREIGN)
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text(FOREIGN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def served(artifact: Artifact, *flags: str) -> Service:
    """Run `headscope serve` as the installed command does: without the current folder."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "service", "serve", "--port", str(port)]
    return Service([*command, "--artifact", str(artifact.folder), *flags], port)


@pytest.mark.parametrize("flags", [["--workers", "2"], ["--engine", "torch"]])
def test_no_process_of_the_service_imports_what_lies_about(
    folder: Path,
    flags: list[str],
    exported: Callable[..., Artifact],
    small_checkpoint: Path,
) -> None:
    with served(exported(small_checkpoint, "small"), *flags) as service:
        service.wait_until_ready()
        with httpx.Client(base_url=service.url, timeout=120) as client:
            assert client.post("/encode", json={"inputs": "Hello world"}).status_code == 200
            reply = client.post("/verify", json={"inputs": "Hello world"})
        assert reply.status_code == 200, reply.text
        assert reply.json()["passed"]
    assert sorted(folder.rglob("*.ran")) == []
