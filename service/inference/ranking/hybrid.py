"""Hybrid scores of bge-m3 and its kind; see `service.inference.tasks.hybrid`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from model.numerics.task_head import TaskConfig
from service.engines.contract import Output, TextTask
from service.inference.core import Inference
from service.inference.encoding import TextEncoding
from service.inference.head_vectors import sparse_vector, token_vectors
from service.inference.ranking.dense import pooling_of
from service.inference.ranking.scorer import Method, Scoring, SeparateScorer
from service.inference.tasks.hybrid import (
    HybridParts,
    HybridWeights,
    hybrid_parts,
    weighted_mean,
)
from service.inference.tokenization.tokenized import TokenizedText
from service.scheduler.outputs import requested


@dataclass
class HybridScorer(SeparateScorer):
    """Scores of a model with a dense vector, a sparse vector and token vectors for each text."""

    inference: Inference
    head: TaskConfig
    weights: HybridWeights
    _query: TextEncoding = field(init=False)

    @property
    def scoring(self) -> Scoring:
        """Name of the score."""
        return "hybrid"

    @property
    def method(self) -> Method:
        """Loss without each token, because the dense score is not a sum over tokens."""
        return "occlusion"

    def query_task(self, unseen: tuple[int, ...] = ()) -> TextTask:
        """Return the forward pass of the query."""
        return self._task(self.query.texts[0], unseen)

    def take_query(self, output: Output, unseen: tuple[int, ...] = ()) -> None:
        """Keep the vectors of the query's tokens that are not left out."""
        self._query = self._vectors(self.query.texts[0], output, unseen)

    def task(self, number: int, unseen: tuple[int, ...] = (), *, shares: bool = False) -> TextTask:
        """Return the forward pass of a document."""
        del shares
        return self._task(self.documents.texts[number], unseen)

    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the weighted mean of the three scores."""
        return weighted_mean(self._parts(number, output, unseen), self.weights)

    def parts(
        self, number: int, output: Output, unseen: tuple[int, ...] = ()
    ) -> Mapping[str, float]:
        """Return the three scores."""
        return asdict(self._parts(number, output, unseen))

    def _parts(self, number: int, output: Output, unseen: tuple[int, ...]) -> HybridParts:
        document = self._vectors(self.documents.texts[number], output, unseen)
        return hybrid_parts(self._query, document)

    def _task(self, text: TokenizedText, unseen: tuple[int, ...] = ()) -> TextTask:
        pooling = pooling_of(self.inference, text, unseen)
        scores = self.head.shape(len(text.input_ids))
        return TextTask(
            text.input_ids, text.segment_ids, pooling=pooling, scores=scores, unseen=unseen
        )

    def _vectors(
        self, text: TokenizedText, output: Output, unseen: tuple[int, ...] = ()
    ) -> TextEncoding:
        """Return the vectors of the tokens of a text that are not left out."""
        ids, scores = text.input_ids, requested(output.scores)
        if unseen:
            ids, scores = np.delete(ids, unseen), np.delete(scores, unseen, axis=0)
        pooled = [requested(output.pooled)]
        return TextEncoding(
            tokens=None,
            pooled=self.inference.vectors.finish(pooled, normalize=True)[0],
            sparse=sparse_vector(self.head, scores, ids),
            multivector=token_vectors(self.head, scores, ids, "document"),
        )
