"""Probabilities against scipy, sparse vectors by hand, and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from service.inference.tasks.task_heads import INLINE_WEIGHTS, probabilities, sparse_vectors

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("logit", [0.0, 3.5, -3.5, 90.0, -80.0, 2000.0, -2000.0])
def test_one_label_is_scipys_expit(logit: float) -> None:
    (found,) = probabilities(np.array([logit], np.float32))
    assert found == pytest.approx(float(expit(logit)), rel=1e-6)


def test_several_labels_are_scipys_softmax() -> None:
    for seed, scale in enumerate((1, 10, 1000)):
        logits = (scale * np.random.default_rng(seed).standard_normal(5)).astype(np.float32)
        found = probabilities(logits)
        np.testing.assert_allclose(found, softmax(logits.astype(np.float64)), rtol=1e-6)
        assert found.dtype == np.float32


@pytest.mark.anyio
@pytest.mark.parametrize("words", [4, INLINE_WEIGHTS])
async def test_a_sparse_vector_keeps_what_is_not_zero(
    words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in a thread where there are many words."""
    looked_through: list[bool] = []
    there = asyncio.to_thread

    async def to_thread(*given: Any) -> Any:
        looked_through.append(True)
        return await there(*given)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    weights = np.zeros((2, words), np.float32)
    weights[0, [1, 3]] = 1.5, 2
    first, second = await sparse_vectors([*weights])
    assert (first.indices.tolist(), first.values.tolist()) == ([1, 3], [1.5, 2.0])
    assert len(second.indices) == len(second.values) == 0
    assert looked_through == [True] * (words > 4)
