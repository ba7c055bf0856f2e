"""Exports that these tests share, in this process and in another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.exports import share_work

CHECKOUT = Path(__file__).resolve().parents[3]
COARSE_ELSEWHERE = """
import sys
from pathlib import Path
from model.checkpoint import load_checkpoint
from model.export.exporter import export
from model.export.graphs import export_encoder
from model.export.to_onnx import save_graph
from tests.exports import share_work

share_work(Path("graphs"))
checkpoint = Path(sys.argv[1])
export(checkpoint, Path("int8"), "tiny", "int8")
Path("fp16").mkdir()
graph = export_encoder(load_checkpoint(checkpoint), "float16")
save_graph(graph, Path("fp16", "encoder.onnx"), external="encoder.onnx.data")
"""


@pytest.fixture(scope="session", autouse=True)
def _shared_work(exports: Path) -> None:
    share_work(exports / "graphs")


@pytest.fixture(scope="session")
def coarse_elsewhere(exports: Path, tiny_checkpoint: Path) -> Path:
    """Return another process's exports of `tiny_checkpoint`: int8, and the encoder's fp16 graph.

    The process has two threads; these tests use one. bf16's graph is float32's in the layout of
    int8's.
    """
    folder = exports / "coarse elsewhere"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            copy = folder / "copy of the checkpoint"
            copy.symlink_to(tiny_checkpoint)
            other = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "OMP_NUM_THREADS": "2"}
            subprocess.run(
                [sys.executable, "-c", COARSE_ELSEWHERE, str(copy)],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(CHECKOUT)} | other,
                check=True,
                capture_output=True,
                timeout=300,
            )
    return folder
