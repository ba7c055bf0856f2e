"""Fixtures of `service/`: engines, and a running application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.engines.process import TorchEngine
from tests.service.harness import StaysOpen, serving
from tests.service.logged import Log, logged


@pytest.fixture(scope="session")
def tiny_artifact(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """Return the artifact of `tiny_checkpoint`, which is fast to copy and read; read only."""
    return exported(tiny_checkpoint, "tiny")


@pytest.fixture(scope="session")
def onnx_engine(artifact: Artifact) -> OnnxEngine:
    """Yield the artifact's engine on ONNX Runtime, two batches at a time."""
    return OnnxEngine(artifact, "cpu", threads=2)


@pytest.fixture(scope="session")
def torch_engine(artifact: Artifact) -> Iterator[TorchEngine]:
    """Yield the artifact's engine in a PyTorch process, for tests that leave it alive."""
    engine = TorchEngine(artifact, timeout_seconds=60)
    yield engine
    engine.close()


@pytest.fixture
def started_torch(torch_engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let applications use the running PyTorch process, and leave it running."""
    monkeypatch.setattr("service.models.start.TorchEngine", lambda *_: StaysOpen(torch_engine))


@pytest.fixture(scope="module")
async def client(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an application with default settings."""
    async with serving(artifact, onnx_engine) as client:
        yield client


@pytest.fixture
def log() -> Iterator[Log]:
    """Record the log lines of a test."""
    with logged() as log:
        yield log
