"""`sparse`: words of the vocabulary with a weight, of a model with such a task head.

Notation: S tokens of one text, V words of the vocabulary, W words with a weight, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from model.numerics.task_head import TaskConfig
from service.engines.contract import Floats, Ids
from service.engines.contract import Output as Computed
from service.inference.outputs.field import Field, TextArrays
from service.inference.outputs.task_head import TaskHeadOutput
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

WORD_BYTES = 24
"""Predicted bytes of a word's index and weight in a reply."""
WEIGHT_BYTES = 4
"""Bytes of the weight of a word of the vocabulary, before zero weights are dropped."""
PREDICTED_SHARE = 8
"""Words of the vocabulary for each word that a sparse encoder's vector is predicted to have."""


class SparseOutput(TaskHeadOutput):
    """Token ids, ascending, and their non-zero weights."""

    name = "sparse"
    remedy = "sparse vectors: take a sparse encoder (SPLADE)"
    fields = (
        Field(
            "sparse.indices",
            "int32",
            ("W",),
            "Token ids, ascending.",
            ragged=True,
            column="indices",
        ),
        Field("sparse.values", "float32", ("W",), "Weights.", ragged=True, column="values"),
        Field("sparse_cu_seqlens", "int32", bounds_of="sparse.indices"),
    )

    def reduce(self, text: Text, computed: Computed) -> TextArrays:
        """Return the vector of a text."""
        indices, values = sparse_vector(self.task, requested(computed.scores), text.input_ids)
        return {"sparse.indices": indices, "sparse.values": values}

    def entries(self, texts: Sequence[Text]) -> int:
        """Return the predicted number of words, which a sparse encoder decides."""
        if self.task.kind == "sparse":
            return len(texts) * self.task.outputs // PREDICTED_SHARE
        return super().entries(texts)

    def nbytes(self, texts: Sequence[Text], number: float) -> float:
        """Return the predicted bytes; of a sparse encoder while it has its whole vocabulary."""
        del number
        if self.task.kind == "sparse":
            return WEIGHT_BYTES * self.task.outputs * len(texts)
        return WORD_BYTES * super().entries(texts)


class SparseVector(NamedTuple):
    """Sparse vector of the vocabulary words with non-zero weights."""

    indices: Ids
    """Token ids, ascending."""
    values: Floats


def sparse_vector(task: TaskConfig, scores: Floats, input_ids: Ids) -> SparseVector:
    """Return the sparse vector of a text.

    Args:
        task: task head, which computes sparse vectors.
        scores: weights `[V]`; or of a `hybrid` head `[S, D + 1]`, whose last column has a weight
            for each token, of which each word gets the largest (bge-m3: Chen et al. 2024, section
            3.1, https://arxiv.org/abs/2402.03216).
        input_ids: `[S]`.

    """
    if task.kind == "sparse":
        indices = np.flatnonzero(scores)
        return SparseVector(indices, scores[indices])
    weights = scores[:, -1]
    kept = (weights > 0) & ~np.isin(input_ids, task.unused_ids)
    indices, words = np.unique(input_ids[kept], return_inverse=True)
    values = np.zeros(len(indices), np.float32)
    np.maximum.at(values, words, weights[kept])
    return SparseVector(indices, values)


def sparse_product(first: SparseVector, second: SparseVector) -> float:
    """Return the inner product of two sparse vectors."""
    _, own, other = np.intersect1d(
        first.indices, second.indices, assume_unique=True, return_indices=True
    )
    return float(np.dot(first.values[own], second.values[other]))
