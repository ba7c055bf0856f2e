"""Fixtures of `http`: a server behind a port, and an application with keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from tests.service.harness import CONFIG, Client, listening, serving

ORIGIN = "https://example.org"


@pytest.fixture(scope="module")
def port(artifact: Artifact) -> Iterator[int]:
    with listening(artifact, FakeEngine(CONFIG), max_body_bytes=1000) as (_, port):
        yield port


@pytest.fixture(scope="module")
async def guarded(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[Client]:
    keys, origins = "old-key, n3w:key", f"{ORIGIN}, http://localhost:3000"
    async with serving(
        artifact, onnx_engine, api_keys=keys, cors_origins=origins, max_body_bytes=1000
    ) as client:
        yield client
