"""Rows of hidden states to a task head and back to texts, with a matrix as the task head."""

from __future__ import annotations

import numpy as np
import pytest

from model.numerics.pooling import TextPooling
from model.numerics.task_head import SLICE_TOKENS, Floats, TaskConfig, rows_of, text_scores

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((4, 3)).astype(np.float32)
HIDDEN = [
    RNG.standard_normal((n, 4)).astype(np.float32)
    for n in (3, 1, SLICE_TOKENS, 2 * SLICE_TOKENS + 5)
]


def config(kind: str, pooling: str) -> TaskConfig:
    return TaskConfig.model_validate({"kind": kind, "outputs": 3, "pooling": pooling})


@pytest.mark.parametrize("mode", ["cls", "mean"])
def test_one_row_a_text_is_pooled(mode: str) -> None:
    task = config("sequence_classification", mode)
    assert rows_of(task, [0, 2], 6) == ([], [TextPooling(n, 6, mode) for n in (0, 2)])  # type: ignore[arg-type]
    scores = text_scores(task, [text[0] for text in HIDDEN], lambda rows: rows @ WEIGHT)
    for of_text, hidden in zip(scores, HIDDEN, strict=True):
        np.testing.assert_allclose(of_text, hidden[0] @ WEIGHT, rtol=1e-5)


def test_a_row_a_token() -> None:
    task = config("token_classification", "none")
    assert rows_of(task, [1], 2) == ([(1, 2)], [])
    scores = text_scores(task, HIDDEN, lambda rows: rows @ WEIGHT)
    for of_text, hidden in zip(scores, HIDDEN, strict=True):
        np.testing.assert_allclose(of_text, hidden @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_parts_of_a_text_make_one_sparse_vector(pooling: str) -> None:
    task = config("sparse", pooling)
    assert rows_of(task, [1], 2) == ([(1, 2)], [])
    longest = 0

    def score(rows: Floats) -> Floats:
        nonlocal longest
        longest = max(longest, len(rows))
        found: Floats = getattr(np, pooling)(np.maximum(rows @ WEIGHT, 0), axis=0)[None]
        return found

    scores = text_scores(task, HIDDEN, score)
    assert longest == SLICE_TOKENS
    for of_text, hidden in zip(scores, HIDDEN, strict=True):
        whole = getattr(np, pooling)(np.maximum(hidden @ WEIGHT, 0), axis=0)
        np.testing.assert_allclose(of_text, whole, rtol=1e-4)
