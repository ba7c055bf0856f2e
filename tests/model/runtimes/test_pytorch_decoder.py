"""Heads recomputed by PyTorch; test_onnx_decoder.py compares all other tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.artifact.signature import MapKind
from model.errors import ArtifactError
from model.export.serving import serving_copy
from model.runtimes.pytorch import load_decoder
from model.runtimes.registry import load_runtime


@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_some_heads_are_those_of_all(bart_artifact: Artifact, kind: MapKind) -> None:
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((5, 24), np.float32)
    keys = rng.standard_normal((7, 24), np.float32) if kind == "cross" else queries
    runtimes = [load_runtime(bart_artifact, name=name) for name in ("pytorch", "onnx")]  # type: ignore[arg-type]
    for layer in (0, 1):
        every = runtimes[1].attention(queries, keys, layer, [0, 1, 2], kind)
        for runtime in runtimes:
            some = runtime.attention(queries, keys, layer, [2, 0], kind)
            np.testing.assert_allclose(some, every[[2, 0]], atol=1e-6)


def test_a_copy_without_weights_is_told(bart_artifact: Artifact, tmp_path: Path) -> None:
    serving = serving_copy(bart_artifact, tmp_path / "serving")
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch needs"):
        load_decoder(serving)
