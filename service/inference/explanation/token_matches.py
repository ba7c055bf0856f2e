"""Token matches of two texts, by a late-interaction model or a sparse encoder.

Notation: S tokens of one text, D features of a token's vector, V words of the vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from model.artifact.mapped import mapped_tensors
from model.config.encoder import EncoderConfig
from model.config.precision import USES
from model.numerics.late_interaction import NO_VECTORS, ROLES, LateInteraction, Role
from model.numerics.task_head import TaskConfig
from model.numerics.word_logits import word_logits
from service.engines.contract import Floats, Ids, Output, TextTask
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.tasks.late_interaction import PreparedRanking
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.scheduler.call import Call
from service.scheduler.outputs import requested


class TokenMatch(NamedTuple):
    """A token of the first text, its match in the second text, and their product.

    For a sparse encoder: the tokens that determined a word's weight in both texts.
    """

    query: int
    document: int
    score: float
    token_id: int | None = None
    """Word of the vocabulary, if the model is a sparse encoder."""


@dataclass(frozen=True)
class PairMatches:
    """A similarity, and the products that sum to it."""

    similarity: float
    matches: Sequence[TokenMatch]
    mean: bool = False
    """Whether the similarity is the mean of the products instead of their sum."""

    def fields(self) -> dict[str, object]:
        """Return the fields of a reply, with |sum of the products − similarity|."""
        total = sum(match.score for match in self.matches)
        if self.mean:
            total /= max(1, len(self.matches))
        error = abs(total - self.similarity) if self.matches else 0.0
        return {
            "similarity": self.similarity,
            "matches": [_named(match) for match in self.matches],
            "completeness_error": error,
        }


def _named(match: TokenMatch) -> dict[str, object]:
    return {name: value for name, value in match._asdict().items() if value is not None}


def max_sim_matches(query: Floats, document: Floats, kept: tuple[Ids, Ids]) -> list[TokenMatch]:
    """Return the best match of each query token among the document's tokens.

    ColBERT's MaxSim (Khattab & Zaharia 2020, section 3.3, eq. 3) is the sum of their products.

    Args:
        query: `[S, D]`.
        document: `[S, D]`.
        kept: indices of the tokens that have a vector, of the query and of the document.

    """
    rows, columns = kept
    if not len(rows) or not len(columns):
        return []
    products = query[rows] @ document[columns].T
    best = products.argmax(axis=1)
    scores = products[np.arange(len(rows)), best]
    matches = zip(rows.tolist(), columns[best].tolist(), scores.tolist(), strict=True)
    return [TokenMatch(*match) for match in matches]


@dataclass(frozen=True)
class LateMatcher:
    """Matches of the pairs of one request to a late-interaction model: a query and a document."""

    inference: Inference
    queries: PreparedTexts
    documents: PreparedTexts
    late: LateInteraction

    @property
    def engine(self) -> str:
        """Name of the engine that computes the texts."""
        return self.queries.engine

    @property
    def timings(self) -> Timings:
        """Timings of both tokenisations and of the computed passes."""
        return self.queries.timings + self.documents.timings

    @property
    def vector_bytes(self) -> int:
        """Bytes of all token vectors, which are in memory together."""
        return sum(ranking.vector_bytes for ranking in self._rankings())

    @property
    def texts(self) -> list[Text]:
        """Query with its expansion tokens, then document, of each pair."""
        tokenizer = self.inference.tokenizer
        return [
            text
            for ranking in self._rankings()
            for text in (_expanded(ranking, tokenizer), ranking.documents.texts[0])
        ]

    async def matches(self) -> list[PairMatches]:
        """Return the matches of each pair, in order.

        Raises:
            Overloaded: the queue is full, or the deadline cannot be met.
            ServiceError: the engine failed.

        """
        self.inference.require_use("vectors")
        rankings = self._rankings()
        tasks = [task for ranking in rankings for task in ranking.tasks()]
        done = await self.queries.scheduler.submit("attention", tasks, self.queries.caller)
        self.queries.timings.add(done)
        vectors = [requested(result.value.scores) for result in done]
        return await asyncio.to_thread(self._matches, rankings, vectors)

    def _matches(
        self, rankings: Sequence[PreparedRanking], vectors: Sequence[Floats]
    ) -> list[PairMatches]:
        pairs = []
        for n, ranking in enumerate(rankings):
            own = vectors[2 * n : 2 * n + 2]
            ids = ranking.query_ids, ranking.documents.texts[0].input_ids
            kept = self._kept(ids[0], "query"), self._kept(ids[1], "document")
            score = float(ranking.scores(own)[0][0])
            matches = max_sim_matches(own[0], own[1], kept) if score > NO_VECTORS else []
            pairs.append(PairMatches(score, matches, ranking.mean))
        return pairs

    def _kept(self, input_ids: Ids, role: Role) -> Ids:
        """Return the indices of the tokens that have a vector."""
        numbers = np.arange(len(input_ids), dtype=np.float32)[:, None]
        return self.late.kept(numbers, input_ids, role)[:, 0].astype(np.int64)

    def _rankings(self) -> list[PreparedRanking]:
        features = self.late.vector_size(self.inference.config.hidden_size) or 0
        mean = self.inference.sentence.similarity_fn_name == "meanmaxsim"
        return [
            PreparedRanking(
                replace(self.queries, texts=[query]),
                replace(self.documents, texts=[document]),
                *(self.late, features, mean),
            )
            for query, document in zip(self.queries.texts, self.documents.texts, strict=True)
        ]


async def prepare_matcher(
    inference: Inference,
    late: LateInteraction,
    sides: tuple[Sequence[Input], Sequence[Input]],
    options: Options,
    caller: Call,
    engine: str | None,
) -> LateMatcher:
    """Tokenise the pairs of a request: first texts as queries, second texts as documents.

    Args:
        inference: inference of the model.
        late: the model's late interaction.
        sides: the first texts of the pairs, and the second texts.
        options: options of tokenisation.
        caller: the client of the request, and its deadline.
        engine: name of the engine; the service's own if None.

    Raises:
        Unprocessable: too many pairs, or a text that does not fit the model.
        EngineUnavailable: the engine has failed, or cannot be started.
        Overloaded: the queue is full, or the deadline cannot be met.

    """
    limits = late.query_tokens, late.document_tokens
    of_query, of_document = (
        replace(options, prompt_name=role, max_tokens=limit, naming=f"inputs[{{}}][{side}]")
        for side, (role, limit) in enumerate(zip(ROLES, limits, strict=True))
    )
    queries = await inference.prepare(sides[0], of_query, caller, "attention", engine)
    documents = await inference.prepare(
        sides[1], of_document, caller, "attention", engine, beside=queries.characters
    )
    return LateMatcher(inference, queries, documents, late)


def _expanded(ranking: PreparedRanking, tokenizer: TextTokenizer) -> Text:
    """Return the query with its expansion tokens, which have empty offsets."""
    query = ranking.query.texts[0]
    ids = ranking.query_ids[query.size :]
    names = tokenizer.vocabulary(ids.tolist())
    return query.in_arrays().extended(ids, [name or "" for name in names])


@dataclass(frozen=True)
class SparseMatcher:
    """Matches of the pairs of one request to a sparse encoder."""

    prepared: PreparedTexts
    """The first and the second text of each pair, in turn."""
    task: TaskConfig
    weights: Path
    """File of the task head's weights."""
    config: EncoderConfig

    @property
    def engine(self) -> str:
        """Name of the engine that computes the texts."""
        return self.prepared.engine

    @property
    def timings(self) -> Timings:
        """Timings of the tokenisation and of the computed passes."""
        return self.prepared.timings

    @property
    def texts(self) -> list[Text]:
        """Texts of all pairs."""
        return self.prepared.texts

    @property
    def vector_bytes(self) -> int:
        """Bytes of all vectors and hidden states, which are in memory together."""
        tokens = sum(len(text.input_ids) for text in self.texts)
        return 4 * (self.task.outputs * len(self.texts) + self.config.hidden_size * tokens)

    async def matches(self) -> list[PairMatches]:
        """Return the matches of each pair, in order.

        Raises:
            Overloaded: the queue is full, or the deadline cannot be met.
            ServiceError: the engine failed.

        """
        prepared, last = self.prepared, self.config.num_hidden_layers
        for use in USES:
            prepared.require_use(use)
        tasks = [
            TextTask(
                text.input_ids, text.segment_ids, hidden_layers=(last,), scores=(self.task.outputs,)
            )
            for text in self.texts
        ]
        done = await prepared.scheduler.submit("attention", tasks, prepared.caller)
        prepared.timings.add(done)
        outputs = [result.value for result in done]
        return await asyncio.to_thread(self._matches, outputs)

    def _matches(self, outputs: Sequence[Output]) -> list[PairMatches]:
        pairs = zip(outputs[::2], outputs[1::2], strict=True)
        return [self._of_pair(first, second) for first, second in pairs]

    def _of_pair(self, first: Output, second: Output) -> PairMatches:
        """Return the words that both vectors have, by falling product of their weights."""
        a, b = np.asarray(first.scores), np.asarray(second.scores)
        products = a * b
        words = np.flatnonzero(products)
        words = words[np.argsort(-products[words], kind="stable")]
        tokens = [self._top_tokens(output.hidden[0], words) for output in (first, second)]
        columns = (*tokens, products[words], words)
        matches = [TokenMatch(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
        return PairMatches(float(np.dot(a.astype(np.float64), b)), matches)

    def _top_tokens(self, states: Floats, words: Ids) -> Ids:
        """Return the token with the largest logit of each word.

        If weights are maxima over tokens, the token determines the word's weight alone; if they are
        sums, it has the largest part of it.
        """
        logits = word_logits(mapped_tensors(self.weights), self.task, states, words)
        tokens: Ids = logits.argmax(axis=0)
        return tokens
