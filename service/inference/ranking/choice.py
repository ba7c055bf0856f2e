"""Choice of a request's scorer by the kind of model, and the tokenisation of its texts.

Notation: S tokens of one text or pair, D of them tokens of the document, V words of the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import numpy as np

from model.artifact.manifest import TASK_WEIGHTS, Artifact
from model.artifact.mapped import mapped_tensors
from model.numerics.late_interaction import ROLES, LateInteraction
from model.numerics.task_head import TaskConfig
from model.numerics.word_logits import word_logits
from model.runtimes.capabilities import lacking_weights
from service.engines.contract import Floats, Output, TextTask
from service.errors import NoTaskHead, NotExported, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.ranking.dense import DenseScorer, HybridScorer, sums_pairs
from service.inference.ranking.late import LateScorer
from service.inference.ranking.scorer import Method, Scorer, Scoring, SeparateScorer, part_of
from service.inference.tasks.hybrid import HybridWeights
from service.inference.tasks.late_interaction import PreparedRanking
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options
from service.scheduler.call import Call
from service.scheduler.lanes import LaneName
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


@dataclass
class CrossScorer(Scorer):
    """Scores of a cross-encoder; `documents` are pairs of the query and each document."""

    head: TaskConfig
    _own: dict[int, range] = field(default_factory=dict)

    @property
    def scoring(self) -> Scoring:
        """Name of the score."""
        return "logit"

    @property
    def method(self) -> Method:
        """Loss without each token, because the logit of a pair is not a sum over tokens."""
        return "occlusion"

    def task(self, number: int, unseen: tuple[int, ...] = (), *, shares: bool = False) -> TextTask:
        """Return the forward pass of a pair."""
        del shares
        text = self.documents.texts[number]
        scores = self.head.shape(len(text.input_ids))
        return TextTask(text.input_ids, text.segment_ids, scores=scores, unseen=unseen)

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


def first_of_pair(pair: Text, second: range) -> range:
    """Return the indices of the tokens of a pair's first text, without special tokens.

    Args:
        pair: tokens of both texts.
        second: indices of the tokens of the second text.

    """
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
    if pair.segment_ids.any():
        own = [token for token in np.flatnonzero(pair.segment_ids).tolist() if not mask[token]]
        return range(own[0], own[-1] + 1) if own else range(len(mask), len(mask))
    runs, start = [], 0
    for special, items in groupby(mask):
        end = start + len(list(items))
        if not special:
            runs.append(range(start, end))
        start = end
    if len(runs) == 1 and runs[0].start <= len(mask) - runs[0].stop:
        return range(len(mask), len(mask))
    return runs[-1] if runs else range(len(mask), len(mask))


QUERY, DOCUMENT = "the query", "documents[{}]"
"""Names of the texts in error messages."""


@dataclass(frozen=True)
class RankTexts:
    """Texts of a request, and the options of their tokenisation."""

    query: str
    documents: Sequence[str]
    options: Options
    named: tuple[str | None, str | None]
    """Names of the prompts of the query and of the documents, as the caller gives them."""
    prompts: tuple[str | None, str | None]
    """Names of the prompts to use: the checkpoint's own where the caller gives none."""


def check_rankable(inference: Inference) -> None:
    """Raise if the model cannot rank texts.

    Raises:
        NoTaskHead: a classifier of tokens, or of texts with several labels.

    """
    task = inference.manifest.task
    if task is not None and (
        task.kind == "token_classification"
        or (task.kind == "sequence_classification" and task.outputs != 1)
    ):
        raise NoTaskHead(
            f"{inference.manifest.model} is a classifier with {task.outputs} labels, and ranks no "
            "texts: serve an embedding model, a sparse encoder, a late-interaction model or a "
            "cross-encoder"
        )


def prompt_names(inference: Inference, texts: RankTexts) -> tuple[str | None, str | None]:
    """Return the names of the prompts of the query and of the documents; None without a prompt.

    A late-interaction model marks both sides itself, and a cross-encoder has at most a prompt of
    the query.
    """
    task, default = inference.manifest.task, inference.sentence.default_prompt_name
    prompts: tuple[str | None, ...] = texts.prompts
    if task is not None and task.kind not in ("sparse", "hybrid"):
        if task.late is not None:
            return None, None
        return (default if texts.named[0] is None else texts.named[0]) or None, None
    query, document = ((default if name is None else name) or None for name in prompts)
    return query, document


@dataclass(frozen=True)
class ScorerFactory:
    """Scorer of a request's documents, by the kind of the model's task head."""

    inference: Inference
    artifact: Artifact
    """Artifact of the model, for the weights of a sparse encoder's head."""
    caller: Call
    """Client and deadline of the request."""
    engine: str | None
    """Name of the engine; the service's own if None."""
    explains: bool
    """Whether shares of tokens are requested."""
    weights: HybridWeights
    """Weights of a hybrid model's scores."""

    async def scorer(self, texts: RankTexts) -> Scorer:
        """Tokenise the texts, and return their scorer.

        Raises:
            NoTaskHead: the model cannot rank texts.
            NotExported: the shares of a serving-only sparse encoder.
            NotVerified: a use that failed the artifact's verification.
            Unprocessable: a prompt for a model without prompts, too many texts, or one that does
                not fit the model.
            EngineUnavailable: the engine has failed, or cannot be started.
            Overloaded: the queue has no room, or the deadline cannot be met.

        """
        check_rankable(self.inference)
        self.inference.require_use("vectors")
        task = self.inference.manifest.task
        if task is None:
            return await self._dense(texts)
        if task.kind == "sparse":
            return await self._sparse(texts, task)
        if task.kind == "hybrid":
            query, documents = await self._prepared(texts)
            return HybridScorer(documents, query, self.inference, task, self.weights)
        if task.late is not None:
            _check_unnamed(texts.named, "marks queries and documents itself")
            return await self._late(texts, task.late)
        _check_unnamed((None, texts.named[1]), "reads each document with the query")
        pairs = [(texts.query, document) for document in texts.documents]
        options = replace(texts.options, naming=DOCUMENT, prompt_name=texts.named[0])
        prepared = await self.inference.prepare(
            pairs, options, self.caller, self._lane, self.engine
        )
        return CrossScorer(prepared, task)

    async def _dense(self, texts: RankTexts) -> Scorer:
        if self.explains and sums_pairs(self.inference):
            self.inference.require_use("heads")
        query, documents = await self._prepared(texts)
        return DenseScorer(documents, query, self.inference)

    async def _sparse(self, texts: RankTexts, task: TaskConfig) -> Scorer:
        if self.explains:
            self.inference.require_use("heads")
            message = lacking_weights(self.inference.manifest, "the explanation of a sparse match")
            if message:
                raise NotExported(message)
        query, documents = await self._prepared(texts)
        weights = self.artifact.path(TASK_WEIGHTS)
        last = self.inference.config.num_hidden_layers
        return SparseScorer(documents, query, task, weights, last)

    async def _late(self, texts: RankTexts, late: LateInteraction) -> Scorer:
        inference = self.inference
        limits = late.query_tokens, late.document_tokens
        query, documents = await self._prepared(
            replace(texts, prompts=(ROLES[0], ROLES[1])), limits
        )
        features = late.vector_size(inference.config.hidden_size) or 0
        mean = inference.sentence.similarity_fn_name == "meanmaxsim"
        return LateScorer(documents, PreparedRanking(query, documents, late, features, mean))

    async def _prepared(
        self, texts: RankTexts, limits: tuple[int | None, int | None] = (None, None)
    ) -> tuple[PreparedTexts, PreparedTexts]:
        """Tokenise the query, and the documents.

        Args:
            texts: query and documents.
            limits: maximum tokens of the query, and of a document; the model's if None.

        """
        of_query, of_documents = (
            replace(texts.options, naming=naming, prompt_name=prompt, max_tokens=limit)
            for naming, prompt, limit in zip((QUERY, DOCUMENT), texts.prompts, limits, strict=True)
        )
        prepare, caller, lane = self.inference.prepare, self.caller, self._lane
        query = await prepare([texts.query], of_query, caller, lane, self.engine)
        documents = await prepare(
            texts.documents, of_documents, caller, lane, self.engine, query.characters
        )
        return query, documents

    @property
    def _lane(self) -> LaneName:
        maps = self.explains and not self.inference.manifest.static
        return "attention" if maps else "encode"


def _check_unnamed(named: tuple[str | None, str | None], why: str) -> None:
    """Raise if the caller has named a prompt that the model has no place for."""
    for name, side in zip(named, ROLES, strict=True):
        if name is not None:
            raise Unprocessable(f"{side}_prompt_name is not for this model, which {why}")
