"""Models of a repository that are loaded while a test runs."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from tests.service.harness import Client
from tests.service.repositories import add, serving_repository


@pytest.fixture
def repository(tmp_path: Path, tiny_artifact: Artifact) -> Path:
    """Return a repository of two versions of `a`, and of `b`."""
    for place in ("a/1", "a/2", "b"):
        add(tmp_path, place, tiny_artifact)
    return tmp_path


class HeldEngine(FakeEngine):
    """Engine whose batches wait until the test opens the gate."""

    gate = threading.Event()

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        assert self.gate.wait(60)
        return super().run(tasks)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return the gate of all engines, which is open."""
    HeldEngine.gate = threading.Event()
    HeldEngine.gate.set()
    monkeypatch.setattr("service.models.start.FakeEngine", HeldEngine)
    return HeldEngine.gate


@pytest.fixture
async def client(
    repository: Path, gate: threading.Event, anyio_backend: str
) -> AsyncIterator[Client]:
    async with serving_repository(repository) as client:
        yield client
    assert gate.is_set()
