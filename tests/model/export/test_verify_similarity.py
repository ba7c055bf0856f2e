"""Similarity of an artifact's vectors, against sentence-transformers' vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from model.artifact.manifest import Artifact
from model.config.precision import Precision
from model.export import verify
from model.export.calibration import SIMILARITY_TEXTS, TEXTS
from model.export.verify import measure_similarity
from model.numerics.similarity import Similarity
from model.runtimes.contract import Floats
from model.runtimes.pytorch import load_encoder
from model.runtimes.registry import load_runtime


def test_the_texts_are_not_those_of_the_calibration() -> None:
    lines = SIMILARITY_TEXTS.read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) == len(lines) == 154
    assert not set(lines) & set(TEXTS.read_text(encoding="utf-8").splitlines())


@pytest.mark.slow
def test_both_sides_have_sentence_transformers_vectors(
    minilm: Callable[[Precision], Artifact],
    minilm_checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Floats] = []

    def keep(reference: Floats, candidate: Floats) -> Similarity:
        seen.extend((reference, candidate))
        return real(reference, candidate)

    real = verify.similarity
    monkeypatch.setattr(verify, "similarity", keep)
    artifact = minilm("fp32")
    found = measure_similarity(artifact, load_encoder(artifact), load_runtime(artifact))
    assert (found.rank_correlation, found.least_cosine) == (1, 1)
    lines = SIMILARITY_TEXTS.read_text(encoding="utf-8").splitlines()
    expected = SentenceTransformer(str(minilm_checkpoint), device="cpu").encode(lines)
    for vectors in seen:
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6)
