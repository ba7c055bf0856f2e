"""Scores of text vectors by the checkpoint's similarity function.

Notation: S tokens of one text, H hidden size, D features of a text's vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np

from model.artifact.sentence import SimilarityName
from model.numerics.task_head import TaskConfig
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.core import Inference
from service.inference.explanation.occlusion import cosine
from service.inference.outputs.field import TextArrays
from service.inference.outputs.multivector import token_vectors
from service.inference.outputs.sparse import sparse_vector
from service.inference.ranking.scorer import Method, Scoring, SeparateScorer
from service.inference.tasks.hybrid import HybridParts, HybridWeights, hybrid_parts, weighted_mean
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested


@dataclass
class DenseScorer(SeparateScorer):
    """Scores of a model with one vector for each text."""

    inference: Inference
    _query: Floats = field(init=False)
    """`[D]`."""

    @property
    def scoring(self) -> Scoring:
        """Name of the checkpoint's similarity function."""
        name = self.inference.sentence.similarity_fn_name
        return "cosine" if name in ("maxsim", "meanmaxsim") else name

    @property
    def method(self) -> Method:
        """Row sums of pairs for means of tokens and products of vectors, else occlusion."""
        return "pairs" if sums_pairs(self.inference) else "occlusion"

    @property
    def empty_score(self) -> float:
        """Score of a zero vector."""
        return self._similarity(np.zeros_like(self._query))

    def query_task(self, unseen: tuple[int, ...] = ()) -> TextTask:
        """Return the forward pass of the query."""
        (text,) = self.query.texts
        pooling = pooling_of(self.inference, text, unseen)
        return TextTask(text.input_ids, text.segment_ids, pooling=pooling, unseen=unseen)

    def take_query(self, output: Output, unseen: tuple[int, ...] = ()) -> None:
        """Keep the query's vector."""
        del unseen
        self._query = self._vector(output)

    def task(self, number: int, unseen: tuple[int, ...] = (), *, shares: bool = False) -> TextTask:
        """Return the forward pass of a document."""
        text = self.documents.texts[number]
        pooling = pooling_of(self.inference, text, unseen)
        layers = (pooling.layer,) if shares else ()
        return TextTask(text.input_ids, text.segment_ids, layers, pooling, unseen=unseen)

    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the similarity of a document's vector and the query's."""
        del number, unseen
        return self._similarity(self._vector(output))

    def shares(self, number: int, output: Output) -> Floats:
        """Return the share of each token, `[S]`: the row sums of the pairs of `POST /explain`.

        A vector p that pooling, linear modules and truncation make of the tokens is the sum of
        their images pⱼ, and the score is q · p, up to a factor c: the share of a token is c q · pⱼ.
        """
        text, vectors = self.documents.texts[number], self.inference.vectors
        first = pooling_of(self.inference, text).first_token
        rows = output.hidden[0][first:]
        products = vectors.shares(rows / np.float32(len(rows))).astype(np.float64) @ self._query
        (whole,) = vectors.finish([requested(output.pooled)], normalize=False)
        total = float(whole.astype(np.float64) @ self._query)
        score = self._similarity(self._vector(output))
        factor = score / total if total else 0.0
        return np.pad((factor * products).astype(np.float32), (first, 0))

    def leaves_nothing(self, number: int, unseen: tuple[int, ...]) -> bool:
        """Return whether no pooled token is beside those left out."""
        return self._pools_nothing(self.documents.texts[number], unseen)

    def leaves_no_query(self, unseen: tuple[int, ...]) -> bool:
        """Return whether no pooled token of the query is beside those left out."""
        return self._pools_nothing(self.query.texts[0], unseen)

    def _pools_nothing(self, text: Text, unseen: tuple[int, ...]) -> bool:
        pooling = pooling_of(self.inference, text, unseen)
        return len(pooling.left_out) == len(text.input_ids) - pooling.first_token

    def _vector(self, output: Output) -> Floats:
        return self.inference.vectors.finish([requested(output.pooled)])[0]

    def _similarity(self, vector: Floats) -> float:
        return similarity(self.inference.sentence.similarity_fn_name, self._query, vector)


def pooling_of(inference: Inference, text: Text, unseen: tuple[int, ...] = ()) -> Pooling:
    """Return the checkpoint's pooling of a text without the tokens that are left out."""
    first = text.first_pooled(inference.sentence)
    left_out = tuple(token for token in unseen if token >= first)
    layer = inference.config.num_hidden_layers
    return Pooling(layer, inference.sentence.pooling, first, left_out)


def sums_pairs(inference: Inference) -> bool:
    """Return whether a score is a sum over pairs of tokens, of which tokens have shares."""
    products = inference.sentence.similarity_fn_name in ("cosine", "dot")
    return products and inference.sentence.pooling == "mean" and inference.vectors.additive()


def similarity(name: SimilarityName, one: Floats, other: Floats) -> float:
    """Return the similarity of two vectors, as sentence-transformers' `similarity_fn_name`.

    Args:
        name: a product, or a distance, whose negative is the similarity.
        one: `[D]`.
        other: `[D]`.

    """
    a, b = one.astype(np.float64), other.astype(np.float64)
    match name:
        case "dot":
            return float(a @ b)
        case "euclidean":
            return -float(np.linalg.norm(a - b))
        case "manhattan":
            return -float(np.abs(a - b).sum())
    return cosine(one, other)


@dataclass
class HybridScorer(SeparateScorer):
    """Scores of a model with a dense vector, a sparse vector and token vectors for each text."""

    inference: Inference
    head: TaskConfig
    weights: HybridWeights
    _query: TextArrays = field(init=False)

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

    def _task(self, text: Text, unseen: tuple[int, ...] = ()) -> TextTask:
        pooling = pooling_of(self.inference, text, unseen)
        scores = self.head.shape(len(text.input_ids))
        return TextTask(
            text.input_ids, text.segment_ids, pooling=pooling, scores=scores, unseen=unseen
        )

    def _vectors(self, text: Text, output: Output, unseen: tuple[int, ...] = ()) -> TextArrays:
        """Return the vectors of the tokens of a text that are not left out."""
        ids, scores = text.input_ids, requested(output.scores)
        if unseen:
            ids, scores = np.delete(ids, unseen), np.delete(scores, unseen, axis=0)
        pooled = [requested(output.pooled)]
        indices, values = sparse_vector(self.head, scores, ids)
        return {
            "pooled": self.inference.vectors.finish(pooled, normalize=True)[0],
            "sparse.indices": indices,
            "sparse.values": values,
            "multivector": token_vectors(self.head, scores, ids, "document"),
        }
