"""Dry runs of the GPU benchmark, on the CPU with the tiny checkpoint and its exports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from benchmarks.gpu import main
from benchmarks.harness.bench import PRECISIONS, Bench, Options
from benchmarks.harness.sizes import QUICK
from model.artifact.cache import cache_key
from model.artifact.manifest import Artifact
from tests.model.checkpoints import TINY

POSITIONS = TINY["max_position_embeddings"]


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint: Path) -> Path:
    return tiny_checkpoint


@pytest.fixture(scope="session")
def kept(exports: Path, checkpoint: Path, exported: Callable[..., Artifact]) -> Path:
    """Return the folder of exports that all dry runs of all processes share."""
    folder = exports / "kept"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            for precision in PRECISIONS:
                artifact = exported(checkpoint, "tiny", precision)
                key = cache_key(checkpoint, "tiny", precision)
                (folder / key).symlink_to(artifact.folder)
            bench = Bench(Options(str(checkpoint), "cpu", QUICK, folder))
            bench.artifact(bench.base, "fp16")
    return folder


@pytest.fixture
def dry(checkpoint: Path, kept: Path, tmp_path: Path):
    """Run some steps on the CPU, and return the exit code and the JSON."""

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
