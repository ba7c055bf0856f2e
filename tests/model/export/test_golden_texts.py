"""Golden target of an encoder–decoder against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model.artifact.golden import read_golden
from model.artifact.manifest import Artifact
from tests.model.encoder_decoders import assert_equal, transformers_says


def test_the_golden_target_is_transformers(translator: tuple[Path, Artifact]) -> None:
    checkpoint, artifact = translator
    *others, last = read_golden(artifact)
    assert others
    assert all(text.target is None and text.labels is None for text in others)
    assert last.labels is not None
    assert last.target is not None
    assert len(last.labels) == 7
    expected = transformers_says(checkpoint, last.input_ids, last.labels)
    assert_equal(last.target, expected)
    np.testing.assert_allclose(last.hidden[-1], expected.encoded[-1], atol=1e-4)
    assert len(last.target.cross_queries) == len(last.target.hidden) - 1
