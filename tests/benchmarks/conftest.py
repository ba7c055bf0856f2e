"""A tiny checkpoint, its exports, and the GPU benchmark dry on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu import main
from benchmarks.harness.bench import Bench, Options
from benchmarks.harness.sizes import QUICK
from tests.model.checkpoints import write_checkpoint

POSITIONS = 64


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "tiny"
    return write_checkpoint(folder, max_position_embeddings=POSITIONS)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports that all dry runs share."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def dry(checkpoint: Path, kept: Path, tmp_path: Path):
    """Run some steps on the CPU; returns the exit code and the JSON."""

    def run(*steps: str, device: str = "cpu") -> tuple[int, dict]:
        path = tmp_path / "out.json"
        arguments = ["--model", str(checkpoint), "--keep", str(kept), "--json", str(path)]
        arguments += ["--device", device, "--quick", *(["--only", *steps] if steps else [])]
        code = main(arguments)
        return code, json.loads(path.read_text(encoding="utf-8"))

    return run


@pytest.fixture
def bench(checkpoint: Path, kept: Path) -> Bench:
    return Bench(Options(str(checkpoint), "cpu", QUICK, kept))
