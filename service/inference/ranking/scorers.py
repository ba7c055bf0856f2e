"""Scores of documents with queries: one class for each kind of model.

Notation: S tokens that the model reads for a document, D of them tokens of the document itself, Q
vectors of a query, V words of the vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

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
from service.inference.outputs.field import TextArrays
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
class Scorer(ABC):
    """Scores of the documents of one request."""

    documents: PreparedTexts
    """Texts that the model reads, one for each document."""
    inference: Inference
    scoring: Scoring
    """Name of the score."""
    method: Method
    explains: bool
    """Whether outputs have what shares of tokens, or matches, are computed from."""

    @property
    def head(self) -> TaskConfig:
        """Task head of the model."""
        return requested(self.inference.manifest.task)

    @property
    def timings(self) -> Timings:
        """Timings of the tokenisation and of the computed passes."""
        return self.documents.timings

    @property
    def additive(self) -> bool:
        """Whether the tokens' shares come with the score, and sum to it."""
        return self.method != "occlusion"

    @abstractmethod
    def query_tokens(self, number: int) -> range:
        """Return the indices of the query's tokens in the text that is read for a document.

        These are the indices in the query's own text if there is a forward pass of the query.
        """

    @abstractmethod
    def query_text(self, number: int) -> Text:
        """Return the tokens of the query alone, as they are read for a document."""

    @abstractmethod
    def task(self, number: int, unseen: tuple[int, ...] = ()) -> TextTask | None:
        """Return the forward pass of a document, which neither attends to nor pools `unseen`.

        None if the document has no other tokens, or no other pooled ones.
        """

    @abstractmethod
    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the score of a document from the output of `task`."""

    def shares(self, number: int, output: Output) -> Floats | None:
        """Return the share of each of a document's tokens, `[D]`; None if shares are losses."""
        del number, output
        return None

    def matches(self, number: int, output: Output) -> list[MatchedToken]:
        """Return the products that sum to the score, for late interaction and sparse encoders."""
        raise NotImplementedError

    def parts(
        self, number: int, output: Output, unseen: tuple[int, ...] = ()
    ) -> Mapping[str, float] | None:
        """Return the scores whose weighted mean is the score, by name; None for other scores."""
        del number, output, unseen
        return None

    @property
    def empty_score(self) -> float:
        """Score of a document without any token."""
        return 0.0

    def own_tokens(self, number: int) -> range:
        """Return the indices of a document's tokens in the text that the model reads."""
        return range(len(self.documents.texts[number].input_ids))

    def document(self, number: int) -> Text:
        """Return the tokens of a document alone."""
        return part_of(self.documents.texts[number], self.own_tokens(number))

    def removable(self, number: int) -> list[int]:
        """Return the indices, among the document's own tokens, that occlusion leaves out.

        Special tokens and tokens of a prompt stay.
        """
        mask = self.document(number).special_tokens_mask
        return [token for token, special in enumerate(mask) if not special]


@dataclass
class CrossScorer(Scorer):
    """Scores of a cross-encoder; `documents` are pairs of a query and a document."""

    _own: dict[int, range] = field(default_factory=dict, init=False)

    def task(self, number: int, unseen: tuple[int, ...] = ()) -> TextTask | None:
        """Return the forward pass of a pair; None if none of its tokens is left."""
        text = self.documents.texts[number]
        return scored(text, self.head.shape(text.size), unseen)

    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the logit."""
        del number, unseen
        return float(requested(output.scores)[0])

    def query_tokens(self, number: int) -> range:
        """Return the indices of the query's tokens in the pair of a document."""
        return first_of_pair(self.documents.texts[number], self.own_tokens(number))

    def query_text(self, number: int) -> Text:
        """Return the query's tokens of a pair."""
        return part_of(self.documents.texts[number], self.query_tokens(number))

    def own_tokens(self, number: int) -> range:
        """Return the indices of the document's tokens in its pair."""
        if number not in self._own:
            self._own[number] = second_of_pair(self.documents.texts[number])
        return self._own[number]


@dataclass
class SeparateScorer(Scorer, Generic[Vectors]):
    """Scores of a model that reads queries and documents by themselves, and compares vectors."""

    queries: PreparedTexts
    """The query of all documents, or one query for each document."""
    _queries: list[Vectors] = field(init=False)

    @abstractmethod
    def _task(self, text: Text, unseen: tuple[int, ...], role: Role) -> TextTask | None:
        """Return the forward pass of a text; None if nothing of it is left."""

    @abstractmethod
    def _vectors(self, text: Text, output: Output, unseen: tuple[int, ...], role: Role) -> Vectors:
        """Return the vectors of a text's tokens that are not left out."""

    @abstractmethod
    def _compare(self, query: Vectors, document: Vectors) -> float:
        """Return the score of a document's vectors with a query's."""

    @property
    def timings(self) -> Timings:
        """Timings of both tokenisations and of the computed passes."""
        return self.queries.timings + self.documents.timings

    @property
    def query_bytes(self) -> int:
        """Bytes of the queries' outputs, which are kept until all documents are scored."""
        size = self.inference.config.hidden_size
        tasks = self.query_tasks()
        states = sum(size * len(task.hidden_layers) * len(task.input_ids) for task in tasks)
        return 4 * (states + sum(math.prod(task.scores or (size,)) for task in tasks))

    def query_tasks(self, unseen: tuple[int, ...] = ()) -> list[TextTask]:
        """Return the forward pass of each query, without some tokens of the only one."""
        return [requested(self._task(text, unseen, "query")) for text in self.queries.texts]

    def take_queries(self, outputs: Sequence[Output], unseen: tuple[int, ...] = ()) -> None:
        """Keep the vectors of the queries."""
        self._queries = [
            self._vectors(text, output, unseen, "query")
            for text, output in zip(self.queries.texts, outputs, strict=True)
        ]

    def _query_of(self, number: int) -> Vectors:
        return self._queries[number if len(self._queries) > 1 else 0]

    def task(self, number: int, unseen: tuple[int, ...] = ()) -> TextTask | None:
        """Return the forward pass of a document; None if nothing of it is left."""
        return self._task(self.documents.texts[number], unseen, "document")

    def _of_document(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> Vectors:
        return self._vectors(self.documents.texts[number], output, unseen, "document")

    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the score of a document from its vectors and the query's."""
        return self._compare(self._query_of(number), self._of_document(number, output, unseen))

    def query_tokens(self, number: int) -> range:
        """Return the indices of all tokens of the query."""
        return range(len(self.query_text(number).input_ids))

    def query_text(self, number: int) -> Text:
        """Return the tokens of the query."""
        texts = self.queries.texts
        return texts[number if len(texts) > 1 else 0]

    def whole_query(self, number: int) -> Text:
        """Return the tokens of the query that have vectors."""
        return self.query_text(number)

    @property
    def embedder(self) -> Embedder:
        """Vectors of texts by the checkpoint's pooling of the last state."""
        return Embedder(self.inference, self.inference.config.num_hidden_layers)

    def leaves_no_query(self, unseen: tuple[int, ...]) -> bool:
        """Return whether the query has no tokens, or no pooled ones, beside those left out."""
        return self._task(self.queries.texts[0], unseen, "query") is None


@dataclass
class DenseScorer(SeparateScorer[Floats]):
    """Scores of a model with one vector `[H]` for each text."""

    @property
    def empty_score(self) -> float:
        """Score of a zero vector."""
        return self._compare(self._queries[0], np.zeros_like(self._queries[0]))

    def _task(self, text: Text, unseen: tuple[int, ...], role: Role) -> TextTask | None:
        """Return the forward pass of a text, with its states for the shares of a document."""
        states = self.explains and self.additive and not unseen and role == "document"
        return self.embedder.task(text, unseen, states=states)

    def _vectors(self, text: Text, output: Output, unseen: tuple[int, ...], role: Role) -> Floats:
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
class SparseScorer(SeparateScorer[Output]):
    """Scores of a model with a weight `[V]` for each word of the vocabulary."""

    def _task(self, text: Text, unseen: tuple[int, ...], role: Role) -> TextTask | None:
        """Return the forward pass of a text, with its last states to explain weights."""
        del role
        last = self.inference.config.num_hidden_layers
        layers = (last,) if self.explains and not unseen else ()
        return scored(text, (self.head.outputs,), unseen, layers)

    def _vectors(self, text: Text, output: Output, unseen: tuple[int, ...], role: Role) -> Output:
        del text, unseen, role
        return output

    def _compare(self, query: Output, document: Output) -> float:
        return float(requested(query.scores).astype(np.float64) @ requested(document.scores))

    def shares(self, number: int, output: Output) -> Floats:
        """Return the sum of the products of the words that each token is the source of, `[S]`."""
        products, words = self._products(number, output)
        shares = np.zeros(len(output.hidden[0]))
        np.add.at(shares, self._sources(output.hidden[0], words), products[words])
        return shares.astype(np.float32)

    def matches(self, number: int, output: Output) -> list[MatchedToken]:
        """Return the words that both vectors have, by falling product of their weights."""
        products, words = self._products(number, output)
        words = words[np.argsort(-products[words], kind="stable")]
        outputs = self._query_of(number), output
        tokens = [self._sources(each.hidden[0], words) for each in outputs]
        scores: list[float] = products[words].astype(np.float32).tolist()
        columns = zip(*(each.tolist() for each in tokens), scores, words.tolist(), strict=True)
        return [MatchedToken(*row) for row in columns]

    def _products(self, number: int, output: Output) -> tuple[NDArray[np.float64], Ids]:
        """Return the products `[V]` of both texts' weights, and the words that both have."""
        query = requested(self._query_of(number).scores)
        products = query.astype(np.float64) * requested(output.scores)
        return products, np.flatnonzero(products).astype(np.int64)

    def _sources(self, states: Floats, words: Ids) -> Ids:
        """Return the token with the largest logit of each word.

        It determines a weight that is a maximum over tokens, and has the largest part of one that
        is a sum.
        """
        weights = mapped_tensors(self.inference.artifact.path(TASK_WEIGHTS))
        tokens: Ids = word_logits(weights, self.head, states, words).argmax(axis=0)
        return tokens


@dataclass
class LateScorer(SeparateScorer[Floats]):
    """Scores of a model with a vector for each token: MaxSim, or its mean over the query's."""

    @property
    def late(self) -> LateInteraction:
        """The model's late interaction."""
        return requested(self.head.late)

    @property
    def timings(self) -> Timings:
        """Timings of both tokenisations, with expansion tokens, and of the computed passes."""
        timings = self.queries.timings + self.documents.timings
        timings.tokens += sum(self.late.missing(len(q.input_ids)) for q in self.queries.texts)
        return timings

    def _task(self, text: Text, unseen: tuple[int, ...], role: Role) -> TextTask | None:
        """Return the forward pass of a text; expansion tokens of a query stay."""
        task = scored(text, self.head.shape(text.size), unseen)
        if task and role == "query":
            add_expansion(task, self.late, self.head.outputs)
        return task

    def _vectors(self, text: Text, output: Output, unseen: tuple[int, ...], role: Role) -> Floats:
        """Return the vectors `[Q, D]` of the tokens that have one and are not left out."""
        return requested(output.scores)[np.setdiff1d(self._kept(text, role), unseen)]

    def _compare(self, query: Floats, document: Floats) -> float:
        """Return MaxSim, or its mean over the query's vectors."""
        return max_sim(query, document) / self._divisor(query)

    def score(self, number: int, output: Output, unseen: tuple[int, ...] = ()) -> float:
        """Return the score; 0, the sum of no match, if the document's last vector is left out."""
        document = self._of_document(number, output, unseen)
        return (
            0.0 if unseen and not len(document) else self._compare(self._query_of(number), document)
        )

    def shares(self, number: int, output: Output) -> Floats:
        """Return the sum of each token's matches, `[S]`."""
        shares = np.zeros(len(self.documents.texts[number].input_ids), np.float64)
        divisor = self._divisor(self._query_of(number))
        for match in self.matches(number, output):
            shares[match.document] += match.score / divisor
        return shares.astype(np.float32)

    def matches(self, number: int, output: Output) -> list[MatchedToken]:
        """Return the best match of each query token among the document's tokens.

        ColBERT's MaxSim (Khattab & Zaharia 2020, section 3.3, eq. 3) is the sum of their products.
        """
        rows = self._kept(self.query_text(number), "query")
        columns = self._kept(self.documents.texts[number], "document")
        if not len(rows) or not len(columns):
            return []
        products = self._query_of(number) @ self._of_document(number, output).T
        best = products.argmax(axis=1)
        scores = products[np.arange(len(rows)), best]
        matches = zip(rows.tolist(), columns[best].tolist(), scores.tolist(), strict=True)
        return [MatchedToken(*match) for match in matches]

    def whole_query(self, number: int) -> Text:
        """Return the query with its expansion tokens, which have empty offsets."""
        query = self.query_text(number)
        ids = self.late.filled_up(query.input_ids)[query.size :]
        names = self.inference.tokenizer.vocabulary(ids.tolist())
        return query.in_arrays().extended(ids, [name or "" for name in names])

    def _divisor(self, query: Floats) -> int:
        return max(1, len(query)) if self.scoring == "meanmaxsim" else 1

    def _kept(self, text: Text, role: Role) -> Ids:
        """Return the indices of the tokens that have a vector, with a query's expansion tokens."""
        ids = self.late.filled_up(text.input_ids) if role == "query" else text.input_ids
        numbers = np.arange(len(ids), dtype=np.float32)[:, None]
        return self.late.kept(numbers, ids, role)[:, 0].astype(np.int64)


@dataclass
class HybridScorer(SeparateScorer[TextArrays]):
    """Scores of bge-m3 and its kind: a weighted mean of dense, sparse and multi-vector scores.

    Chen et al. 2024, section 3.2, https://arxiv.org/abs/2402.03216, as FlagEmbedding's
    `compute_score`.
    """

    weights: Mapping[str, float]
    """Weight of each score by its name in `hybrid_parts`."""

    def _task(self, text: Text, unseen: tuple[int, ...], role: Role) -> TextTask | None:
        del role
        task = scored(text, self.head.shape(text.size), unseen)
        if task:
            task.pooling = self.embedder.pooling(text, unseen)
        return task

    def _vectors(
        self, text: Text, output: Output, unseen: tuple[int, ...], role: Role
    ) -> TextArrays:
        del role
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

    def _compare(self, query: TextArrays, document: TextArrays) -> float:
        """Return Σ w s / Σ w over the three scores."""
        scores, weights = hybrid_parts(query, document), self.weights
        return sum(weights[name] * scores[name] for name in scores) / sum(weights.values())

    def parts(
        self, number: int, output: Output, unseen: tuple[int, ...] = ()
    ) -> Mapping[str, float]:
        """Return the three scores."""
        return hybrid_parts(self._query_of(number), self._of_document(number, output, unseen))


def hybrid_parts(query: TextArrays, document: TextArrays) -> dict[str, float]:
    """Return the products of the vectors, and the mean over the query of MaxSim."""
    vectors = query["multivector"]
    words = [SparseVector(own["sparse.indices"], own["sparse.values"]) for own in (query, document)]
    return {
        "dense": float(np.dot(query["pooled"], document["pooled"])),
        "sparse": sparse_product(*words),
        "multivector": max_sim(vectors, document["multivector"]) / max(1, len(vectors)),
    }


def scored(
    text: Text, scores: tuple[int, ...], unseen: tuple[int, ...], layers: tuple[int, ...] = ()
) -> TextTask | None:
    """Return the forward pass of a text by a task head; None if all its tokens are left out."""
    if len(unseen) == text.size:
        return None
    return TextTask(text.input_ids, text.segment_ids, layers, scores=scores, unseen=unseen)


def part_of(text: Text, tokens: range) -> Text:
    """Return some adjacent tokens of a text."""
    if len(tokens) == len(text.input_ids):
        return text
    return text.in_arrays().of(slice(tokens.start, tokens.stop), cut=False)


def first_of_pair(pair: Text, second: range) -> range:
    """Return the indices of a pair's first text without special tokens, beside the second's."""
    mask: Sequence[int] = pair.special_tokens_mask
    own = [token for token, special in enumerate(mask) if not special and token not in second]
    return range(own[0], own[-1] + 1) if own else range(0)


def second_of_pair(pair: Text) -> range:
    """Return the indices of the tokens of a pair's second text, without special tokens.

    Its tokens have segment 1 in most models. Elsewhere the special tokens that the tokenizer added
    separate the texts; if only one of the texts has tokens, it is the second one if more special
    tokens precede it than follow it.
    """
    mask: Sequence[int] = pair.special_tokens_mask
    nothing = range(len(mask), len(mask))
    if pair.segment_ids.any():
        own = [token for token in np.flatnonzero(pair.segment_ids).tolist() if not mask[token]]
        return range(own[0], own[-1] + 1) if own else nothing
    runs, start = [], 0
    for special, items in groupby(mask):
        end = start + len(list(items))
        if not special:
            runs.append(range(start, end))
        start = end
    if not runs or (len(runs) == 1 and runs[0].start <= len(mask) - runs[0].stop):
        return nothing
    return runs[-1]


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
