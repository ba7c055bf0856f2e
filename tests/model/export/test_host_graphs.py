"""Graphs that run on the host: one call writes all of them."""

from __future__ import annotations

from pathlib import Path

import onnx

from model.artifact.manifest import Artifact
from model.export.host_graphs import save_host_graphs

FILES = (
    "decomposition.onnx",
    "decomposition_values.onnx",
    "head_scores.onnx",
    "value_norms.onnx",
)


def test_they_are_those_of_an_artifact(tiny_artifact: Artifact, tmp_path: Path) -> None:
    save_host_graphs(tiny_artifact.manifest.config, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    for name in FILES:
        onnx.checker.check_model(tmp_path / name)
        assert (tmp_path / name).read_bytes() == tiny_artifact.path(name).read_bytes()
