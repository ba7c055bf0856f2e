"""Fixtures of the dialects: a small cross-encoder, served once, and its own scores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sentence_transformers import CrossEncoder

from model.artifact.manifest import Artifact
from tests.service.api.rankers import Ranker
from tests.service.harness import Client, serving


@pytest.fixture(scope="session")
def ranker(cross_checkpoint: Path) -> Ranker:
    """Return a ranker that scores by sentence-transformers."""
    return Ranker(CrossEncoder(str(cross_checkpoint), device="cpu", max_length=36))


@pytest.fixture(scope="module")
async def ranking(
    exported: Callable[..., Artifact], cross_checkpoint: Path, anyio_backend: str
) -> AsyncIterator[Client]:
    """Yield a client of an application that serves the cross-encoder."""
    async with serving(exported(cross_checkpoint, "cross")) as client:
        yield client
