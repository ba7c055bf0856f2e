"""Hybrid scores of bge-m3 and its kind: a weighted mean of dense, sparse and multi-vector scores.

Chen et al. 2024, section 3.2, https://arxiv.org/abs/2402.03216, as FlagEmbedding's `compute_score`.

Notation: B documents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.numerics.late_interaction import max_sim
from model.numerics.task_head import TaskConfig
from service.engines.contract import Floats
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.outputs.field import TextArrays
from service.inference.outputs.sparse import SparseVector, sparse_product


@dataclass(frozen=True)
class HybridWeights:
    """Weights of the three scores, of which at least one is above 0."""

    dense: float = 1.0
    sparse: float = 1.0
    multivector: float = 1.0


@dataclass(frozen=True)
class HybridParts:
    """The three scores of a document, whose weighted mean is its hybrid score."""

    dense: float
    sparse: float
    multivector: float


def vector_bytes(inference: Inference, prepared: PreparedTexts, task: TaskConfig) -> int:
    """Return the bytes of all vectors of the texts, which are in memory together."""
    tokens = sum(len(text.input_ids) for text in prepared.texts)
    floats = task.outputs * tokens + inference.vectors.kept() * len(prepared.texts)
    return 4 * floats


async def hybrid_scores(
    inference: Inference, prepared: PreparedTexts, task: TaskConfig, weights: HybridWeights
) -> list[Floats]:
    """Compute the score `[1]` of each document, from one forward pass of each text.

    Args:
        inference: inference of the model.
        prepared: the query, then the B documents.
        task: task head of kind `hybrid`.
        weights: weights of the scores.

    Raises:
        NotVerified: vectors failed the artifact's verification.
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    options = EncodeOptions(("pooled", *task.vectors), normalize=True)
    encodings = await inference.encode(prepared, options)
    return await asyncio.to_thread(_scores, encodings, weights)


def _scores(encodings: Sequence[TextArrays], weights: HybridWeights) -> list[Floats]:
    query, *documents = encodings
    return [
        np.array([hybrid_score(query, document, weights)], np.float32) for document in documents
    ]


def hybrid_score(query: TextArrays, document: TextArrays, weights: HybridWeights) -> float:
    """Return the weighted mean of the three scores of a document."""
    return weighted_mean(hybrid_parts(query, document), weights)


def hybrid_parts(query: TextArrays, document: TextArrays) -> HybridParts:
    """Return the products of the vectors, and the mean over the query of MaxSim."""
    vectors = query["multivector"]
    words = [SparseVector(own["sparse.indices"], own["sparse.values"]) for own in (query, document)]
    return HybridParts(
        float(np.dot(query["pooled"], document["pooled"])),
        sparse_product(*words),
        max_sim(vectors, document["multivector"]) / max(1, len(vectors)),
    )


def weighted_mean(parts: HybridParts, weights: HybridWeights) -> float:
    """Return Σ w s / Σ w over the three scores."""
    total = weights.dense * parts.dense
    total += weights.sparse * parts.sparse
    total += weights.multivector * parts.multivector
    return total / (weights.dense + weights.sparse + weights.multivector)
