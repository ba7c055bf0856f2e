"""Scores of documents with queries: one class for each kind of model.

Notation: S tokens that the model reads for a document, D of them tokens of the document itself, Q
vectors of a query, V words of the vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from model.artifact.manifest import TASK_WEIGHTS
from model.artifact.mapped import mapped_tensors
from model.artifact.sentence import SimilarityName
from model.numerics.late_interaction import LateInteraction, Role, max_sim
from model.numerics.task_head import TaskConfig, word_logits
from service.engines.contract import Floats, Ids, Output, TextTask
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.explanation.occlusion import cosine
from service.inference.explanation.tower import Embedder
from service.inference.outputs.task_head import (
    SparseVector,
    add_expansion,
    sparse_product,
    sparse_vector,
    token_vectors,
)
from service.inference.timings import Timings
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

Scoring = SimilarityName | Literal["sparse", "hybrid", "logit"]
Method = Literal["pairs", "matches", "weights", "occlusion"]
"""Origin of tokens' shares: row sums of token pairs; MaxSim matches; weights of words; or the loss
of score without the token. Only the loss does not sum to the score."""
Vectors = TypeVar("Vectors")
"""Vectors of a text, by which a model compares texts."""
Tokens: TypeAlias = tuple[int, ...]
"""Indices of the tokens that are left out of a text."""


class MatchedToken(NamedTuple):
    """A token of the query, its match in the document, and their product.

    For a sparse encoder: the tokens that determined a word's weight in both texts.
    """

    query: int
    document: int
    score: float
    token_id: int | None = None
    """Word of the vocabulary, if the model is a sparse encoder."""


@dataclass
class Scorer(ABC, Generic[Vectors]):
    """Scores of the documents of one request, by their vectors and the vectors of the query."""

    documents: PreparedTexts
    """Texts that the model reads, one for each document."""
    inference: Inference
    scoring: Scoring
    """Name of the score."""
    method: Method
    explains: bool
    """Whether outputs have what shares of tokens, or matches, are computed from."""
    queries: PreparedTexts | None = None
    """The query of all documents, or one for each; None if it is read with each document."""
    _queries: list[Vectors] = field(default_factory=list, init=False)

    @abstractmethod
    def _task(self, text: Text, unseen: Tokens, role: Role) -> TextTask | None:
        """Return the forward pass of a text, which neither attends to nor pools `unseen`.

        None if the text has no other tokens, or no other pooled ones.
        """

    @abstractmethod
    def _vectors(self, text: Text, output: Output, unseen: Tokens, role: Role) -> Vectors:
        """Return the vectors of a text's tokens that are not left out."""

    @abstractmethod
    def _compare(self, query: Vectors, document: Vectors) -> float:
        """Return the score of a document's vectors with a query's."""

    @property
    def head(self) -> TaskConfig:
        """Task head of the model."""
        return requested(self.inference.manifest.task)

    @property
    def embedder(self) -> Embedder:
        """Vectors of texts by the checkpoint's pooling of the last state."""
        return Embedder(self.inference, self.inference.config.num_hidden_layers)

    @property
    def timings(self) -> Timings:
        """Timings of the tokenisation and the computed passes; tokens include expansion tokens."""
        if self.queries is None:
            return self.documents.timings
        timings = self.queries.timings + self.documents.timings
        read = sum(task.tokens for task in self.query_tasks())
        timings.tokens = read + self.documents.timings.tokens
        return timings

    @property
    def additive(self) -> bool:
        """Whether the tokens' shares come with the score, and sum to it."""
        return self.method != "occlusion"

    @property
    def empty_score(self) -> float:
        """Score of a document without any token."""
        return 0.0

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries' outputs, which are kept until all documents are scored."""
        size, tasks = self.inference.config.hidden_size, self.query_tasks()
        states = sum(size * len(task.hidden_layers) * len(task.input_ids) for task in tasks)
        return 4 * (states + sum(math.prod(task.scores or (size,)) for task in tasks))

    def query_tasks(self, unseen: Tokens = ()) -> list[TextTask]:
        """Return the forward pass of each query, without some tokens of the only one."""
        texts = self.queries.texts if self.queries else ()
        return [requested(self._task(text, unseen, "query")) for text in texts]

    def take_queries(self, outputs: Sequence[Output], unseen: Tokens = ()) -> None:
        """Keep the vectors of the queries."""
        pairs = zip(requested(self.queries).texts, outputs, strict=True)
        self._queries = [self._vectors(text, output, unseen, "query") for text, output in pairs]

    def leaves_no_query(self, unseen: Tokens) -> bool:
        """Return whether the query has no tokens, or no pooled ones, beside those left out."""
        return self._task(requested(self.queries).texts[0], unseen, "query") is None

    def task(self, number: int, unseen: Tokens = ()) -> TextTask | None:
        """Return the forward pass of a document; None if nothing of it is left."""
        return self._task(self.documents.texts[number], unseen, "document")

    def score(self, number: int, output: Output, unseen: Tokens = ()) -> float:
        """Return the score of a document from the output of `task`."""
        return self._compare(self._query_of(number), self._of_document(number, output, unseen))

    def parts(self, number: int, output: Output, unseen: Tokens = ()) -> Mapping[str, float] | None:
        """Return the scores whose weighted mean the score is, by name; None for other scores."""
        del number, output, unseen
        return None

    def matches(self, number: int, output: Output) -> list[MatchedToken]:
        """Return the products that sum to the score, for late interaction and sparse encoders."""
        raise NotImplementedError

    def shares(self, number: int, output: Output) -> Floats:
        """Return the share of each token, `[D]`, in an additive score: the sum of its matches."""
        shares = np.zeros(self.documents.texts[number].size)
        divisor = self._divisor(self._query_of(number))
        for match in self.matches(number, output):
            shares[match.document] += match.score / divisor
        return shares.astype(np.float32)

    def query_tokens(self, number: int) -> range:
        """Return the indices of the query's tokens in the text that is read with a document.

        These are the indices in the query's own text if there is a forward pass of the query.
        """
        return range(self.query_text(number).size)

    def query_text(self, number: int) -> Text:
        """Return the tokens of the query alone, as they are read for a document."""
        texts = requested(self.queries).texts
        return texts[number if len(texts) > 1 else 0]

    def whole_query(self, number: int) -> Text:
        """Return the tokens of the query that have vectors."""
        return self.query_text(number)

    def own_tokens(self, number: int) -> range:
        """Return the indices of a document's tokens in the text that the model reads."""
        return range(self.documents.texts[number].size)

    def document(self, number: int) -> Text:
        """Return the tokens of a document alone."""
        return part_of(self.documents.texts[number], self.own_tokens(number))

    def removable(self, number: int) -> list[int]:
        """Return the indices, among the document's own tokens, that occlusion leaves out.

        Special tokens and tokens of a prompt stay.
        """
        mask = self.document(number).special_tokens_mask
        return [token for token, special in enumerate(mask) if not special]

    def _query_of(self, number: int) -> Vectors:
        return self._queries[number if len(self._queries) > 1 else 0]

    def _of_document(self, number: int, output: Output, unseen: Tokens = ()) -> Vectors:
        return self._vectors(self.documents.texts[number], output, unseen, "document")

    def _divisor(self, query: Vectors) -> int:
        """Return the number by which a sum of matches is divided."""
        del query
        return 1


@dataclass
class CrossScorer(Scorer[Floats]):
    """Logits of a cross-encoder; `documents` are pairs of a query and a document."""

    _sides: dict[int, tuple[range, range]] = field(default_factory=dict, init=False)

    def _task(self, text: Text, unseen: Tokens, role: Role) -> TextTask | None:
        del role
        return scored(text, self.head.shape(text.size), unseen)

    def _vectors(self, text: Text, output: Output, unseen: Tokens, role: Role) -> Floats:
        del text, unseen, role
        return requested(output.scores)

    def _compare(self, query: Floats, document: Floats) -> float:
        del query
        return float(document[0])

    def _query_of(self, number: int) -> Floats:
        """Return no vector: a pair has the query."""
        del number
        return np.empty(0, np.float32)

    def query_tokens(self, number: int) -> range:
        """Return the indices of the query's tokens in the pair of a document."""
        return self._of_pair(number)[0]

    def query_text(self, number: int) -> Text:
        """Return the query's tokens of a pair."""
        return part_of(self.documents.texts[number], self.query_tokens(number))

    def own_tokens(self, number: int) -> range:
        """Return the indices of the document's tokens in its pair."""
        return self._of_pair(number)[1]

    def _of_pair(self, number: int) -> tuple[range, range]:
        if number not in self._sides:
            self._sides[number] = sides_of_pair(self.documents.texts[number])
        return self._sides[number]


@dataclass
class DenseScorer(Scorer[Floats]):
    """Scores of a model with one vector `[H]` for each text."""

    @property
    def empty_score(self) -> float:
        """Score of a zero vector."""
        return self._compare(self._queries[0], np.zeros_like(self._queries[0]))

    def _task(self, text: Text, unseen: Tokens, role: Role) -> TextTask | None:
        """Return the forward pass of a text, with its states for the shares of a document."""
        states = self.explains and self.additive and not unseen and role == "document"
        return self.embedder.task(text, unseen, states=states)

    def _vectors(self, text: Text, output: Output, unseen: Tokens, role: Role) -> Floats:
        del text, unseen, role
        return self.embedder.vector(output)

    def _compare(self, query: Floats, document: Floats) -> float:
        return similarity(self.scoring, query, document)

    def shares(self, number: int, output: Output) -> Floats:
        """Return the share of each token, `[S]`: the row sums of the pairs of `POST /explain`.

        A vector p that pooling, linear modules and truncation make of the tokens is the sum of
        their images pⱼ, and the score is q · p, up to a factor c: the share of a token is c q · pⱼ.
        """
        text, query = self.documents.texts[number], self._query_of(number)
        decomposed = self.embedder.mean_shares(text, output)
        products = decomposed.shares.astype(np.float64) @ query
        total = float(decomposed.pooled.astype(np.float64) @ query)
        factor = self.score(number, output) / total if total else 0.0
        first = self.embedder.pooling(text).first_token
        return np.pad((factor * products).astype(np.float32), (first, 0))


@dataclass
class SparseScorer(Scorer[Output]):
    """Scores of a model with a weight `[V]` for each word of the vocabulary."""

    def _task(self, text: Text, unseen: Tokens, role: Role) -> TextTask | None:
        """Return the forward pass of a text, with its last states to explain weights."""
        del role
        last = self.inference.config.num_hidden_layers
        layers = (last,) if self.explains and not unseen else ()
        return scored(text, (self.head.outputs,), unseen, layers)

    def _vectors(self, text: Text, output: Output, unseen: Tokens, role: Role) -> Output:
        del text, unseen, role
        return output

    def _compare(self, query: Output, document: Output) -> float:
        return float(requested(query.scores).astype(np.float64) @ requested(document.scores))

    def matches(self, number: int, output: Output) -> list[MatchedToken]:
        """Return the words that both vectors have, by falling product of their weights.

        The tokens of a word have its largest logit in each text: it determines a weight that is a
        maximum over tokens, and has the largest part of one that is a sum.
        """
        query = self._query_of(number)
        products = requested(query.scores).astype(np.float64) * requested(output.scores)
        words = np.flatnonzero(products).astype(np.int64)
        words = words[np.argsort(-products[words], kind="stable")]
        weights = mapped_tensors(self.inference.artifact.path(TASK_WEIGHTS))
        tokens: list[list[int]] = [
            word_logits(weights, self.head, each.hidden[0], words).argmax(axis=0).tolist()
            for each in (query, output)
        ]
        scores: list[float] = products[words].astype(np.float32).tolist()
        return [*map(MatchedToken, *tokens, scores, words.tolist())]


@dataclass
class LateScorer(Scorer[Floats]):
    """Scores of a model with a vector for each token: MaxSim, or its mean over the query's."""

    @property
    def late(self) -> LateInteraction:
        """The model's late interaction."""
        return requested(self.head.late)

    def _task(self, text: Text, unseen: Tokens, role: Role) -> TextTask | None:
        """Return the forward pass of a text; expansion tokens of a query stay."""
        task = scored(text, self.head.shape(text.size), unseen)
        if task and role == "query":
            add_expansion(task, self.late, self.head.outputs)
        return task

    def _vectors(self, text: Text, output: Output, unseen: Tokens, role: Role) -> Floats:
        """Return the vectors `[Q, D]` of the tokens that have one and are not left out."""
        return requested(output.scores)[np.setdiff1d(self._kept(text, role), unseen)]

    def _compare(self, query: Floats, document: Floats) -> float:
        """Return MaxSim, or its mean over the query's vectors."""
        return max_sim(query, document) / self._divisor(query)

    def _divisor(self, query: Floats) -> int:
        return max(1, len(query)) if self.scoring == "meanmaxsim" else 1

    def score(self, number: int, output: Output, unseen: Tokens = ()) -> float:
        """Return the score; 0, the sum of no match, if the document's last vector is left out."""
        left = not unseen or len(self._of_document(number, output, unseen))
        return super().score(number, output, unseen) if left else 0.0

    def matches(self, number: int, output: Output) -> list[MatchedToken]:
        """Return the best match of each query token among the document's tokens.

        ColBERT's MaxSim (Khattab & Zaharia 2020, section 3.3, eq. 3) is the sum of their products.
        """
        rows = self._kept(self.query_text(number), "query")
        columns = self._kept(self.documents.texts[number], "document")
        if not len(rows) or not len(columns):
            return []
        products = self._query_of(number) @ self._of_document(number, output).T
        best = columns[products.argmax(axis=1)].tolist()
        return [*map(MatchedToken, rows.tolist(), best, products.max(axis=1).tolist())]

    def whole_query(self, number: int) -> Text:
        """Return the query with its expansion tokens, which have empty offsets."""
        query = self.query_text(number)
        ids = self.late.filled_up(query.input_ids)[query.size :]
        names = self.inference.tokenizer.vocabulary(ids.tolist())
        return query.in_arrays().extended(ids, [name or "" for name in names])

    def _kept(self, text: Text, role: Role) -> Ids:
        """Return the indices of the tokens that have a vector, with a query's expansion tokens."""
        ids = self.late.filled_up(text.input_ids) if role == "query" else text.input_ids
        numbers = np.arange(len(ids), dtype=np.float32)[:, None]
        return self.late.kept(numbers, ids, role)[:, 0].astype(np.int64)


class HybridVectors(NamedTuple):
    """Vectors of a text by a hybrid model."""

    dense: Floats
    sparse: SparseVector
    multivector: Floats


@dataclass
class HybridScorer(Scorer[HybridVectors]):
    """Scores of bge-m3 and its kind: a weighted mean of dense, sparse and multi-vector scores.

    Chen et al. 2024, section 3.2, https://arxiv.org/abs/2402.03216, as FlagEmbedding's
    `compute_score`.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each score by its name."""

    def _task(self, text: Text, unseen: Tokens, role: Role) -> TextTask | None:
        del role
        task = scored(text, self.head.shape(text.size), unseen)
        if task:
            task.pooling = self.embedder.pooling(text, unseen)
        return task

    def _vectors(self, text: Text, output: Output, unseen: Tokens, role: Role) -> HybridVectors:
        del role
        ids = np.delete(text.input_ids, unseen)
        scores = np.delete(requested(output.scores), unseen, axis=0)
        return HybridVectors(
            self.inference.vectors.finish([requested(output.pooled)], normalize=True)[0],
            sparse_vector(self.head, scores, ids),
            token_vectors(self.head, scores, ids, "document"),
        )

    def _compare(self, query: HybridVectors, document: HybridVectors) -> float:
        """Return Σ w s / Σ w over the three scores."""
        scores, weights = _products(query, document), self.weights
        return sum(weights[name] * scores[name] for name in scores) / sum(weights.values())

    def parts(self, number: int, output: Output, unseen: Tokens = ()) -> Mapping[str, float]:
        """Return the three scores."""
        return _products(self._query_of(number), self._of_document(number, output, unseen))


def _products(query: HybridVectors, document: HybridVectors) -> dict[str, float]:
    """Return the products of the vectors, and the mean over the query of MaxSim."""
    vectors = query.multivector
    return {
        "dense": float(np.dot(query.dense, document.dense)),
        "sparse": sparse_product(query.sparse, document.sparse),
        "multivector": max_sim(vectors, document.multivector) / max(1, len(vectors)),
    }


def scored(
    text: Text, scores: tuple[int, ...], unseen: Tokens, layers: tuple[int, ...] = ()
) -> TextTask | None:
    """Return the forward pass of a text by a task head; None if all its tokens are left out."""
    if len(unseen) == text.size:
        return None
    return TextTask(text.input_ids, text.segment_ids, layers, scores=scores, unseen=unseen)


def part_of(text: Text, tokens: range) -> Text:
    """Return some adjacent tokens of a text."""
    if len(tokens) == text.size:
        return text
    return text.in_arrays().of(slice(tokens.start, tokens.stop), cut=False)


def sides_of_pair(pair: Text) -> tuple[range, range]:
    """Return the indices of the tokens of a pair's texts, without special tokens.

    The tokens of the second text have segment 1 in most models. Elsewhere the special tokens that
    the tokenizer added separate the texts; if only one of the texts has tokens, it is the second
    one if more special tokens precede it than follow it.
    """
    mask: Sequence[int] = pair.special_tokens_mask
    own = np.flatnonzero([not special for special in mask])
    if pair.segment_ids.any():
        second = own[pair.segment_ids[own] > 0]
    else:
        runs = np.split(own, 1 + np.flatnonzero(np.diff(own) > 1))
        follows = len(runs) > 1 or (len(own) and own[0] >= len(mask) - own[-1])
        second = runs[-1] if follows else own[:0]
    sides = own[own < second[0]] if len(second) else own, second
    first, other = (range(own[0], own[-1] + 1) if own else range(0) for own in map(list, sides))
    return first, other


def sums_pairs(inference: Inference) -> bool:
    """Return whether a score is a sum over pairs of tokens, of which tokens have shares."""
    products = inference.sentence.similarity_fn_name in ("cosine", "dot")
    return products and inference.sentence.pooling == "mean" and inference.vectors.additive()


def similarity(name: Scoring, one: Floats, other: Floats) -> float:
    """Return sentence-transformers' similarity of two vectors `[D]`; a distance is negated."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    match name:
        case "dot":
            return float(a @ b)
        case "euclidean":
            return -float(np.linalg.norm(a - b))
        case "manhattan":
            return -float(np.abs(a - b).sum())
    return cosine(one, other)
