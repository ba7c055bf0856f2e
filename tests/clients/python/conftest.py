"""Artifact of the client's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def artifact(exported: Callable[..., Artifact], small_checkpoint: Path) -> Artifact:
    """Return the artifact of the service's tests: L = 2, N = 2, H = 128; read only."""
    return exported(small_checkpoint, "small")


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of client, sync or async."""
    return str(request.param)
