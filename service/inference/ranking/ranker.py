"""Ranking of documents, and its explanation within the request's deadline.

The scores of all documents are computed first, with the shares of tokens where these come from the
same forward pass. Forward passes without a token or a word follow until the reply has to be
written; unfinished values are left out.

Notation: D tokens of a document.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from service.engines.contract import Floats, Output
from service.errors import Unprocessable
from service.inference.explanation.occlusion import (
    USEFUL_SHARE,
    Occlusion,
    Work,
    in_turn,
    occlude,
    promised,
    run_until,
)
from service.inference.explanation.spans import tokens_of
from service.inference.ranking.contrast import ComparedDocument, occluded_document
from service.inference.ranking.scorers import Scorer, Tokens
from service.inference.tokenization.text import Offset, Text
from service.scheduler.call import Call
from service.scheduler.lanes import LaneName

ExplainKind = Literal["none", "tokens", "contrast"]
_LESS = "send fewer or shorter documents"
_LESS_TOKENS = f"{_LESS}, or a smaller `top_n`"
Value = TypeVar("Value")


@dataclass(frozen=True)
class RankOptions:
    """Explanations that a caller requests of a ranking."""

    explain: ExplainKind = "none"
    """`tokens`: shares of the tokens of the first `top_n` documents; `contrast`: the difference of
    two documents, word by word."""
    top_n: int | None = None
    """Number of ranked documents in the reply; all if None."""
    compare: tuple[int, int] | None = None
    """Indices of the two documents of a contrast; the two with the highest scores if None."""
    top_words: int = 5
    """Number of words of each document without which its rank is computed."""


NO_EXPLANATION = RankOptions()


class Unseen(NamedTuple):
    """Indices of tokens that are neither attended to nor pooled."""

    query: Tokens
    """Tokens of the query's own forward pass; empty if each document is read with the query."""
    documents: Sequence[Tokens]
    """Tokens of the text that the model reads for each document."""


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """Score of a document, and the shares of its tokens."""

    score: float
    parts: Mapping[str, float] | None = None
    """Scores whose weighted mean the score is, by name; None for other scores."""
    shares: Floats | None = None
    """`[D]`; NaN for special tokens that stay, and for values that are not computed."""
    computed: int = 0
    """Number of computed shares."""
    partial: bool = False
    """Whether the deadline came before all shares were computed."""

    @property
    def error(self) -> float:
        """|Sum of the shares − score|; NaN if a share is missing."""
        if self.shares is None or self.partial:
            return math.nan
        return abs(float(np.nansum(self.shares, dtype=np.float64)) - self.score)


def order_of(scores: Sequence[float]) -> list[int]:
    """Return indices by descending score; equal scores keep their order."""
    order: list[int] = np.argsort([-score for score in scores], kind="stable").tolist()
    return order


async def each_document(
    scorer: Scorer[Any],
    lane: LaneName,
    caller: Call,
    read: Callable[[int, Output], Value],
    unseen: Unseen | None = None,
) -> dict[int, Value]:
    """Return what `read` makes of each document's index and output, in the computing thread.

    Documents of which nothing is left are absent.
    """
    prepared = replace(scorer.documents, caller=caller)
    of_query, of_documents = unseen or ((), [()] * len(prepared.texts))
    found = [(n, scorer.task(n, left_out)) for n, left_out in enumerate(of_documents)]
    tasks = {number: task for number, task in found if task}
    if queries := scorer.query_tasks(of_query):
        scorer.take_queries(await prepared.submit(lane, queries), of_query)
    reduce, results = [partial(read, number) for number in tasks], list[Value]()
    if tasks:
        values = [*tasks.values()]
        results = await prepared.submit(lane, values, reduce, resumed=bool(queries))
    return dict(zip(tasks, results, strict=True))


@dataclass
class Ranker:
    """Ranking of the documents of one request."""

    scorer: Scorer[Any]
    inputs: Sequence[str]
    """Documents as the caller sent them."""
    options: RankOptions = NO_EXPLANATION
    unseen: Unseen | None = None
    """Tokens that are left out of the texts; only without an explanation."""
    documents: list[ScoredDocument] = field(default_factory=list, init=False)
    """Scores in the order of the request."""
    contrast: list[ComparedDocument] = field(default_factory=list, init=False)
    """The two compared documents; empty without a contrast."""
    _occluded: dict[int, Occlusion] = field(default_factory=dict, init=False)
    """Occlusion of the tokens of the first documents, by the documents' indices."""

    @property
    def scores(self) -> list[float]:
        """Score of each document, in the order of the request."""
        return [document.score for document in self.documents]

    @property
    def order(self) -> list[int]:
        """Indices of all documents, the best first; equal scores keep the order of the request."""
        return order_of(self.scores)

    @property
    def explains(self) -> bool:
        """Whether an explanation is requested."""
        return self.options.explain != "none"

    @property
    def shown(self) -> int:
        """Number of documents in the reply."""
        return min(self.options.top_n or len(self.inputs), len(self.inputs))

    @property
    def work(self) -> Work:
        """Largest possible work, whichever documents turn out to be the first ones."""
        scorer, options = self.scorer, self.options
        lengths = [len(text.input_ids) for text in scorer.documents.texts]
        encoded = sum(lengths) + sum(task.tokens for task in scorer.query_tasks())
        passes: list[int] = []
        if self.explains and not (options.explain == "tokens" and scorer.additive):
            numbers = options.compare or range(len(lengths))
            passes = [lengths[number] * self._most_parts(number) for number in numbers]
            passes = heapq.nlargest(2 if options.explain == "contrast" else self.shown, passes)
        least = encoded + math.ceil(USEFUL_SHARE * sum(passes))
        return Work(encoded + sum(passes), least)

    async def rank(self, reply_bytes: int) -> None:
        """Rank the documents, and explain what can be in time; `reply_bytes` take time to write.

        Raises:
            Unprocessable: not even the smallest useful part fits before the deadline.
            Overloaded: the queue is full, or less than half would fit beside other requests.
            EngineTimeout: the deadline came before the scores were computed.

        """
        prepared, began, options = self.scorer.documents, self.scorer.timings.began, self.options

        def advice(_: float) -> str:
            return _LESS_TOKENS if options.explain == "tokens" else _LESS

        lane: LaneName = "attention" if self.explains else "encode"
        works, less = [(prepared, self.work)], advice if self.explains else None
        with promised(works, began, reply_bytes, less) as ((prepared,), due):
            found = await each_document(self.scorer, lane, prepared.caller, self._read, self.unseen)
            nothing = ScoredDocument(self.scorer.empty_score)
            self.documents = [found.get(n, nothing) for n in range(len(self.inputs))]
            if not self.explains:
                return
            await asyncio.to_thread(self._choose)
            occlusions = [*self._occluded.values(), *(each.occlusion for each in self.contrast)]
            jobs = in_turn([occlusion.jobs() for occlusion in occlusions])
            await run_until(due, [occlude(prepared, jobs)])
        await asyncio.to_thread(self._settle)

    def _read(self, number: int, output: Output) -> ScoredDocument:
        scorer, unseen = self.scorer, self.unseen.documents[number] if self.unseen else ()
        score = scorer.score(number, output, unseen)
        parts = scorer.parts(number, output, unseen)
        if not (self.explains and scorer.additive):
            return ScoredDocument(score, parts)
        shares = scorer.shares(number, output)
        return ScoredDocument(score, parts, shares, len(shares))

    def _choose(self) -> None:
        """Choose the forward passes without parts of documents."""
        scorer, options, order = self.scorer, self.options, self.order
        if options.explain == "tokens" and not scorer.additive:
            for number in order[: self.shown]:
                parts = [(token,) for token in scorer.removable(number)]
                self._occluded[number] = occluded_document(scorer, number, parts)
        if options.explain == "contrast":
            for number in options.compare or order[:2]:
                found, text = self.documents[number], self.inputs[number]
                compared = ComparedDocument(
                    scorer, number, text, found.score, found.shares, options.top_words
                )
                self.contrast.append(compared)

    def _settle(self) -> None:
        """Keep the values computed so far."""
        for number, occlusion in self._occluded.items():
            document = self.documents[number]
            occlusion.settle()
            shares = np.full(len(self.scorer.own_tokens(number)), np.nan, np.float32)
            shares[self.scorer.removable(number)] = document.score - occlusion.scores
            computed = occlusion.computed
            self.documents[number] = replace(
                document, shares=shares, computed=computed, partial=computed < len(occlusion.order)
            )
        for compared in self.contrast:
            compared.occlusion.settle()

    def _most_parts(self, number: int) -> int:
        """Return the largest number of parts of a document that are left out."""
        tokens = len(self.scorer.removable(number))
        return min(tokens, self.options.top_words) if self.scorer.additive else tokens


QUERY, DOCUMENTS = "query_without", "documents_without"
"""Names of the request's fields in error messages."""


def unseen_of(
    scorer: Scorer[Any],
    texts: tuple[str, Sequence[str]],
    of_query: Sequence[Offset],
    of_documents: Sequence[Sequence[Offset]],
) -> Unseen:
    """Return the tokens of spans that are left out of a query and documents as they were sent.

    `of_documents` is empty if nothing is left out of any. Raise `Unprocessable` unless the spans of
    each text ascend without overlaps and have tokens, and tokens of the query are left.
    """
    query, documents = texts
    unseen: list[Tokens] = []
    for number, spans in enumerate(of_documents or [()] * len(documents)):
        name, own = f"{DOCUMENTS}[{number}]", scorer.own_tokens(number)
        found = [own[n] for n in left_out(documents[number], spans, scorer.document(number), name)]
        if of_query and not scorer.queries:
            own = scorer.query_tokens(number)
            tokens = left_out(query, of_query, scorer.query_text(number), QUERY)
            found = [*(own[token] for token in tokens), *found]
        unseen.append(tuple(found))
    if not scorer.queries:
        return Unseen((), unseen)
    in_query = left_out(query, of_query, scorer.query_text(0), QUERY)
    if in_query and scorer.leaves_no_query(in_query):
        raise Unprocessable(f"{QUERY}: no token of the query would be left: leave out less")
    return Unseen(in_query, unseen)


def left_out(text: str, spans: Sequence[Offset], tokenized: Text, name: str) -> Tokens:
    """Return the indices of the tokens of spans, ascending; `name` is the spans' field."""
    before = 0
    for place, (start, end) in enumerate(spans):
        if start < before or start >= end or end > len(text):
            raise Unprocessable(
                f"{name}[{place}] is [{start}, {end}): send spans of [0, {len(text)}) that ascend, "
                "without overlaps"
            )
        before = end
    owned = tokens_of(spans, tokenized)
    if [] in owned:
        place = owned.index([])
        start, end = spans[place]
        raise Unprocessable(
            f"{name}[{place}] is [{start}, {end}), which has no token: send another span"
        )
    return tuple(sorted({token for tokens in owned for token in tokens}))
