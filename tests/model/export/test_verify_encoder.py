"""Compared tensors: PyTorch and the graphs give the same names."""

from __future__ import annotations

import numpy as np

from model.artifact.manifest import Artifact
from model.artifact.vectors import TextVectors
from model.export.verify_encoder import runtime_tensors, torch_tensors
from model.numerics.batch import pack
from model.runtimes.pytorch import load_encoder
from model.runtimes.registry import load_runtime


def test_each_text_has_the_same_tensors_on_both_sides(tiny_artifact: Artifact) -> None:
    batch, vectors = pack([([5, 6, 7], [0, 0, 0]), ([8, 9], [0, 0])]), TextVectors.of(tiny_artifact)
    references = torch_tensors(load_encoder(tiny_artifact), batch, vectors)
    candidates = runtime_tensors(load_runtime(tiny_artifact), batch, vectors)
    assert len(references) == len(candidates) == 2
    for expected, found, tokens in zip(references, candidates, (3, 2), strict=True):
        assert expected.keys() == found.keys()
        for key, tensor in expected.items():
            assert key.kind == "pooled" or tensor.shape[0] == tokens
            np.testing.assert_allclose(found[key], tensor, atol=1e-4)
