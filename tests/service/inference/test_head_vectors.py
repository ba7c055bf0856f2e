"""Sparse vectors and token vectors of task heads, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig
from service.inference.head_vectors import (
    SparseVector,
    names_of,
    sparse_product,
    sparse_vector,
    token_vectors,
)

SPARSE = TaskConfig(kind="sparse", outputs=5, pooling="max")
LATE = LateInteraction(modules=(), skipped_ids=(7,), first_token=1)
HYBRID = TaskConfig(kind="hybrid", outputs=3, pooling="none", late=LATE, unused_ids=(0, 2))
IDS = np.array([0, 9, 7, 9, 2])
SCORES = np.array([[1, 1, 5], [2, 2, 0.5], [3, 3, 0.25], [4, 4, 0.75], [5, 5, 0.125]], np.float32)


def listed(vector: SparseVector) -> tuple[list[int], list[float]]:
    return vector.indices.tolist(), vector.values.tolist()


def test_a_sparse_vector_keeps_what_is_not_zero() -> None:
    weights = np.array([0, 1.5, 0, 2, 0], np.float32)
    assert listed(sparse_vector(SPARSE, weights, IDS)) == ([1, 3], [1.5, 2.0])
    assert listed(sparse_vector(SPARSE, 0 * weights, IDS)) == ([], [])


def test_a_word_has_the_largest_weight_of_its_tokens() -> None:
    """Unused tokens and weights of 0 are left out."""
    assert listed(sparse_vector(HYBRID, SCORES, IDS)) == ([7, 9], [0.25, 0.75])
    assert listed(sparse_vector(HYBRID, SCORES * [1, 1, 0], IDS)) == ([], [])


def test_token_vectors_are_without_skipped_tokens_and_weights() -> None:
    found = token_vectors(HYBRID, SCORES, IDS, "query")
    assert found.tolist() == [[2, 2], [3, 3], [4, 4], [5, 5]]
    found = token_vectors(HYBRID, SCORES, IDS, "document")
    assert found.tolist() == [[2, 2], [4, 4], [5, 5]]
    with pytest.raises(ValueError, match="sparse computes no token vectors"):
        token_vectors(SPARSE, SCORES, IDS, "query")


def test_a_product_is_of_common_words() -> None:
    first = SparseVector(np.array([1, 4, 6]), np.array([1, 2, 3], np.float32))
    second = SparseVector(np.array([0, 4, 6]), np.array([5, 0.5, 2], np.float32))
    assert sparse_product(first, second) == 7
    assert sparse_product(first, SparseVector(np.array([2]), np.array([9], np.float32))) == 0


def test_outputs_are_what_the_task_head_adds() -> None:
    assert names_of(None) == ("tokens", "pooled")
    assert names_of(HYBRID) == ("tokens", "pooled", "sparse", "multivector")
