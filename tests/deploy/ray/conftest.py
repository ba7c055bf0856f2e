"""Fixtures of the tests of `deploy/ray/`: an exported artifact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def artifact(exported: Callable[..., Artifact], small_checkpoint: Path) -> Artifact:
    """Return an export of `small_checkpoint`: up to 512 tokens, H = 128; read only."""
    return exported(small_checkpoint, "small")
