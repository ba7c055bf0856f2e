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
from typing import Literal

import numpy as np

from service.engines.contract import Floats, Output
from service.inference.explanation.cost import (
    USEFUL_SHARE,
    Work,
    check_least,
    needed_tokens,
    run_until,
    writing_seconds,
)
from service.inference.explanation.occlusion import in_turn, occlude
from service.inference.ranking.contrast import ComparedDocument, ContrastWork, OccludedDocument
from service.inference.ranking.left_out import Unseen
from service.inference.ranking.scorer import QueryPass, Scorer
from service.scheduler.call import Call, PendingWork
from service.scheduler.lanes import LaneName

ExplainKind = Literal["none", "tokens", "contrast"]
_LESS = "send fewer or shorter documents"
_LESS_TOKENS = f"{_LESS}, or a smaller `top_n`"


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


@dataclass(frozen=True)
class TokenShares:
    """Shares of a document's tokens in its score."""

    shares: Floats
    """`[D]`; NaN for special tokens that stay, and for values that are not computed."""
    wanted: int
    """Number of shares to compute."""
    computed: int
    """Number of shares that were computed before the deadline."""

    def error(self, score: float) -> float:
        """Return |sum of the shares − score|; NaN if a share is missing."""
        if self.computed < self.wanted:
            return math.nan
        return abs(float(np.nansum(self.shares, dtype=np.float64)) - score)


@dataclass(frozen=True)
class Ranking:
    """Scores of documents, their order, and the explanation that was requested."""

    scores: list[float]
    """Score of each document, in the order of the request."""
    parts: list[Mapping[str, float] | None]
    """Scores whose weighted mean each score is, by name; None for other scores."""
    order: list[int]
    """Indices of all documents, the best first; equal scores keep the order of the request."""
    tokens: dict[int, TokenShares]
    """Shares of the tokens of the first documents, by the documents' indices."""
    contrast: tuple[ComparedDocument, ComparedDocument] | None


@dataclass(frozen=True, slots=True)
class _Scored:
    """Score of a document, with the parts and the shares of tokens that come with it."""

    score: float
    parts: Mapping[str, float] | None
    shares: Floats | None


@dataclass
class Ranker:
    """Ranking of the documents of one request."""

    scorer: Scorer
    inputs: Sequence[str]
    """Documents as the caller sent them."""
    options: RankOptions
    unseen: Unseen | None = None
    """Tokens that are left out of the texts; only without an explanation."""
    _scores: list[float] = field(default_factory=list)
    _parts: list[Mapping[str, float] | None] = field(default_factory=list)
    _shares: list[Floats] = field(default_factory=list)
    """Shares that come with the scores."""
    _occluded: dict[int, OccludedDocument] = field(default_factory=dict)
    _compared: list[ContrastWork] = field(default_factory=list)

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
        query = scorer.query_task().tokens if isinstance(scorer, QueryPass) else 0
        encoded = sum(lengths) + query
        passes: list[int] = []
        if self.explains and not (options.explain == "tokens" and scorer.additive):
            numbers = options.compare or range(len(lengths))
            passes = [lengths[number] * self._most_parts(number) for number in numbers]
            passes = heapq.nlargest(2 if options.explain == "contrast" else self.shown, passes)
        least = encoded + math.ceil(USEFUL_SHARE * sum(passes))
        return Work(encoded + sum(passes), least)

    async def rank(self, reply_bytes: int) -> Ranking:
        """Return the ranking, and the explanation that is computed before the deadline.

        Args:
            reply_bytes: predicted size of the reply, which determines the time to write it.

        Raises:
            Unprocessable: not even the smallest useful part fits before the deadline.
            Overloaded: the queue is full, or less than half would fit beside other requests.
            EngineTimeout: the deadline came before the scores were computed.
            ServiceError: the engine failed.

        """
        prepared = self.scorer.documents
        seconds = prepared.caller.finish_by - self.scorer.timings.began
        writing, work, needed = writing_seconds(seconds, reply_bytes), self.work, None
        if self.explains:
            advice = _LESS_TOKENS if self.options.explain == "tokens" else _LESS
            alone = prepared.scheduler.seconds_alone("attention", work.least)
            check_least(alone, seconds - writing, lambda: advice)
            needed = needed_tokens(prepared.scheduler, work, seconds - writing)
        promise = PendingWork(work.tokens, needed, writing_seconds=writing)
        caller = replace(prepared.caller, pending=promise)
        try:
            await self._score(caller)
            order = self._order()
            await asyncio.to_thread(self._choose, order)
            await run_until(caller.finish_by - writing, [self._occlude(caller)])
        finally:
            promise.end()
        return await asyncio.to_thread(self._result, order)

    async def _score(self, caller: Call) -> None:
        """Compute the scores of all documents, and the shares that come with them."""
        scorer, lane = self.scorer, self._lane
        scheduler, timings = scorer.documents.scheduler, scorer.documents.timings
        shares = self.explains and scorer.additive
        unseen = self.unseen or Unseen((), [()] * len(self.inputs))
        numbers = [
            number
            for number, left_out in enumerate(unseen.documents)
            if not (left_out and scorer.leaves_nothing(number, left_out))
        ]
        tasks = [scorer.task(n, unseen.documents[n], shares=shares) for n in numbers]
        reduce = [self._reader(n, unseen.documents[n], shares=shares) for n in numbers]
        if isinstance(scorer, QueryPass):
            done = await scheduler.submit(lane, [scorer.query_task(unseen.query)], caller)
            timings.add(done)
            scorer.take_query(done[0].value, unseen.query)
            results = []
            if tasks:
                results = await scheduler.submit(lane, tasks, caller, reduce, resumed=True)
        else:
            results = await scheduler.submit(lane, tasks, caller, reduce)
        timings.add(results)
        scored = {n: result.value for n, result in zip(numbers, results, strict=True)}
        nothing = _Scored(scorer.empty_score, None, None)
        found = [scored.get(number, nothing) for number in range(len(self.inputs))]
        self._scores = [one.score for one in found]
        self._parts = [one.parts for one in found]
        self._shares = [one.shares for one in found if one.shares is not None]

    def _reader(
        self, number: int, unseen: tuple[int, ...], *, shares: bool
    ) -> Callable[[Output], _Scored]:
        """Return a function that is called in the thread that computes a document's output."""

        def read(output: Output) -> _Scored:
            scorer = self.scorer
            own = scorer.shares(number, output) if shares else None
            parts = scorer.parts(number, output, unseen)
            return _Scored(scorer.score(number, output, unseen), parts, own)

        return read

    def _order(self) -> list[int]:
        order: list[int] = np.argsort([-score for score in self._scores], kind="stable").tolist()
        return order

    def _choose(self, order: Sequence[int]) -> None:
        """Choose the forward passes without parts of documents."""
        scorer, options = self.scorer, self.options
        if options.explain == "tokens" and not scorer.additive:
            for number in order[: self.shown]:
                parts = [[token] for token in scorer.removable(number)]
                self._occluded[number] = OccludedDocument(scorer, number, parts)
        if options.explain == "contrast":
            for number in options.compare or order[:2]:
                own = self._shares[number] if scorer.additive else None
                text, score = self.inputs[number], self._scores[number]
                work = ContrastWork(scorer, number, text, score, own, options.top_words)
                self._compared.append(work)

    async def _occlude(self, caller: Call) -> None:
        """Compute the scores without parts: the first of each document, then the second, …."""
        prepared = self.scorer.documents
        documents = [*self._occluded.values(), *(work.occluded for work in self._compared)]
        jobs = in_turn([document.jobs() for document in documents])
        await occlude(prepared.scheduler, caller, prepared.timings, jobs)

    def _result(self, order: list[int]) -> Ranking:
        """Return the values computed so far."""
        tokens: dict[int, TokenShares] = {}
        if self.options.explain == "tokens":
            tokens = {number: self._of_tokens(number) for number in order[: self.shown]}
        compared = [work.compared() for work in self._compared]
        contrast = (compared[0], compared[1]) if compared else None
        return Ranking(self._scores, self._parts, order, tokens, contrast)

    def _of_tokens(self, number: int) -> TokenShares:
        if self.scorer.additive:
            own = self._shares[number]
            return TokenShares(own, len(own), len(own))
        losses = self._scores[number] - self._occluded[number].scores
        shares = np.full(len(self.scorer.own_tokens(number)), np.nan, np.float32)
        shares[self.scorer.removable(number)] = losses
        computed = int(np.count_nonzero(~np.isnan(losses)))
        return TokenShares(shares, len(losses), computed)

    def _most_parts(self, number: int) -> int:
        """Return the largest number of parts of a document that are left out."""
        tokens = len(self.scorer.removable(number))
        return min(tokens, self.options.top_words) if self.scorer.additive else tokens

    @property
    def _lane(self) -> LaneName:
        return "attention" if self.explains else "encode"
