"""Heads recomputed by PyTorch; test_onnx_decoder.py compares all other tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact, RuntimeName
from model.artifact.signature import MapKind
from model.errors import ArtifactError
from model.export.serving import serving_copy
from model.runtimes.capabilities import Decoder, capability
from model.runtimes.pytorch import load_decoder
from model.runtimes.registry import load_runtime


@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_some_heads_are_those_of_all(bart_artifact: Artifact, kind: MapKind) -> None:
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((5, 24), np.float32)
    keys = rng.standard_normal((7, 24), np.float32) if kind == "cross" else queries
    names: tuple[RuntimeName, ...] = ("pytorch", "onnx")
    decoders = [capability(load_runtime(bart_artifact, name=name), Decoder) for name in names]
    for layer in (0, 1):
        every = decoders[1].attention_of(kind, queries, keys, layer, [0, 1, 2])
        for decoder in decoders:
            some = decoder.attention_of(kind, queries, keys, layer, [2, 0])
            np.testing.assert_allclose(some, every[[2, 0]], atol=1e-6)


def test_a_copy_without_weights_is_told(bart_artifact: Artifact, tmp_path: Path) -> None:
    serving = serving_copy(bart_artifact, tmp_path / "serving")
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch needs"):
        load_decoder(serving)
