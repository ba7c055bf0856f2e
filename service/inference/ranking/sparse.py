"""Products of sparse vectors, and the share of each document token.

Notation: S tokens of one text, V words of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model.artifact.mapped import mapped_tensors
from model.numerics.task_head import TaskConfig
from model.numerics.word_logits import word_logits
from service.engines.contract import Floats, Output, TextTask
from service.inference.ranking.scorer import Method, Scoring, SeparateScorer
from service.scheduler.outputs import requested


@dataclass
class SparseScorer(SeparateScorer):
    """Scores of a model with a weight for each word of the vocabulary."""

    head: TaskConfig
    weights: Path
    """File of the task head's weights."""
    last: int
    """Index of the last hidden state."""
    _query: Floats = field(init=False)
    """`[V]`."""

    @property
    def scoring(self) -> Scoring:
        """Name of the score."""
        return "sparse"

    @property
    def method(self) -> Method:
        """Weights of the words that the query has too."""
        return "weights"

    def query_task(self, unseen: tuple[int, ...] = ()) -> TextTask:
        """Return the forward pass of the query."""
        (text,) = self.query.texts
        scores = (self.head.outputs,)
        return TextTask(text.input_ids, text.segment_ids, scores=scores, unseen=unseen)

    def take_query(self, output: Output, unseen: tuple[int, ...] = ()) -> None:
        """Keep the query's weights."""
        del unseen
        self._query = requested(output.scores)

    def task(self, number: int, unseen: tuple[int, ...] = (), *, shares: bool = False) -> TextTask:
        """Return the forward pass of a document."""
        text, layers = self.documents.texts[number], (self.last,) if shares else ()
        scores = (self.head.outputs,)
        return TextTask(text.input_ids, text.segment_ids, layers, scores=scores, unseen=unseen)

    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the product of both vectors."""
        del number, unseen
        return float(self._query.astype(np.float64) @ requested(output.scores))

    def shares(self, number: int, output: Output) -> Floats:
        """Return the sum of the products of the words that each token is the source of, `[S]`.

        A word's source is the token with its largest logit: it determines a weight that is a
        maximum over tokens, and has the largest part of one that is a sum.
        """
        del number
        products = self._query.astype(np.float64) * requested(output.scores)
        words, states = np.flatnonzero(products), output.hidden[0]
        logits = word_logits(mapped_tensors(self.weights), self.head, states, words)
        shares = np.zeros(len(states))
        np.add.at(shares, logits.argmax(axis=0), products[words])
        return shares.astype(np.float32)
