"""Explanation of the cosine of two texts or pictures: shares, and the loss when a part is masked.

The vectors and the shares of contextual vectors are computed first. Decomposition, occlusion and
heads then run concurrently until the reply has to be written; unfinished values are left out.

Notation: S tokens of a text, S_a and S_b of two, H hidden size, D features of a text's vector.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, Output
from service.inference.attention.stream import CHUNK_TOKENS
from service.inference.explanation.cost import (
    Side,
    check_time,
    needed_tokens,
    run_until,
    writing_seconds,
)
from service.inference.explanation.decomposition import decomposition_bytes, pair_shares
from service.inference.explanation.occlusion import (
    HeadOcclusion,
    Occlusion,
    cosine,
    head_occlusion_bytes,
    in_turn,
    occlude,
)
from service.inference.explanation.spans import (
    AnySpan,
    ExplainOptions,
    PairExplanation,
    blocks_of,
    span_sums,
    spans_of,
)
from service.inference.explanation.towers import Tower
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.text import Text
from service.scheduler.call import PendingWork
from service.scheduler.outputs import requested


@dataclass
class PairWork:
    """State of a pair of texts during its explanation."""

    options: ExplainOptions
    texts: tuple[Text, Text]
    spans: tuple[Sequence[AnySpan], Sequence[AnySpan]]
    similarity: float = math.nan
    pairs: Floats | None = None
    decomposition: Floats | None = None
    occlusions: tuple[Occlusion, ...] = ()
    heads: HeadOcclusion | None = None

    @property
    def sides(self) -> list[Side]:
        """Sizes of both texts."""
        top = self.options.top
        return [
            Side(
                len(text.input_ids),
                len(spans),
                min(len(spans), top or len(spans)),
                text.picture is not None,
            )
            for text, spans in zip(self.texts, self.spans, strict=True)
        ]

    def explanation(self) -> PairExplanation:
        """Return the explanation with the values computed so far.

        Losses are copies, because a running batch may still write into the arrays.
        """
        similarity, decomposition, heads = self.similarity, self.decomposition, None
        wanted: dict[str, int] = {}
        losses: tuple[Floats, Floats] | None = None
        if self.options.occlusion:
            first, second = (
                (similarity - occlusion.without).astype(np.float32) for occlusion in self.occlusions
            )
            losses = first, second
            wanted["occlusion"] = sum(len(occlusion.order) for occlusion in self.occlusions)
        if self.options.decomposition:
            wanted["decomposition"] = 1
            if decomposition is None:
                lengths = [len(text.input_ids) for text in self.texts]
                decomposition = np.full(lengths, np.nan, np.float32)
        if self.heads:
            heads = (similarity - self.heads.similarities).astype(np.float32)
            wanted["heads"] = heads.size
        return PairExplanation(
            similarity=similarity,
            pairs=self.pairs,
            decomposition=decomposition,
            occlusion=losses,
            spans=self.spans,
            span_kind=self.options.spans,
            heads=heads,
            wanted=wanted,
        )


def chunks(works: Sequence[PairWork]) -> Iterator[Sequence[PairWork]]:
    """Split pairs into runs of at most `CHUNK_TOKENS` tokens; a longer pair is a run alone."""
    start = tokens = 0
    for number, work in enumerate(works):
        own = sum(len(text.input_ids) for text in work.texts)
        if number > start and tokens + own > CHUNK_TOKENS:
            yield works[start:number]
            start, tokens = number, 0
        tokens += own
    yield works[start:]


T = TypeVar("T")


@dataclass
class Explainer:
    """Explanation of the pairs of one request."""

    towers: tuple[Tower, Tower]
    """Encoders of the first and of the second texts of all pairs; one encoder may be both."""
    inputs: Sequence[Input]
    """First and second text of each pair, in turn, as the caller sent them."""
    texts: Sequence[Text]
    """Tokenised inputs."""
    works: list[PairWork] = field(init=False)

    def __post_init__(self) -> None:
        """Determine the spans of the texts."""
        spans = [self._spans(*text) for text in zip(self.inputs, self.texts, strict=True)]
        self.works = [
            PairWork(self.options, (self.texts[n], self.texts[n + 1]), (spans[n], spans[n + 1]))
            for n in range(0, len(self.texts), 2)
        ]

    @property
    def options(self) -> ExplainOptions:
        """Options of the request; the layer is of the first tower."""
        return self.towers[0].options

    @property
    def configs(self) -> tuple[EncoderConfig, EncoderConfig]:
        """Configurations of the encoders of first and of second texts."""
        first, second = self.towers
        return first.inference.config, second.inference.config

    @property
    def encoders(self) -> list[Tower]:
        """The towers, each once."""
        return [*dict.fromkeys(self.towers)]

    @property
    def sides(self) -> list[Side]:
        """Sizes of the first and the second text of each pair, in turn."""
        return [side for work in self.works for side in work.sides]

    @property
    def timings(self) -> Timings:
        """Timings of the request."""
        first, *second = [tower.prepared.timings for tower in self.encoders]
        return sum(second, first)

    @property
    def bytes_at_a_time(self) -> int:
        """Peak memory of hidden states and shares, in bytes, without the explanations."""
        config, options = max(self.configs, key=lambda config: config.hidden_size), self.options
        lengths = [sum(len(text.input_ids) for text in work.texts) for work in self.works]
        kept = options.pairs or options.occlusion
        size = 4 * min(sum(lengths), max(CHUNK_TOKENS, *lengths)) * kept * config.hidden_size
        if options.decomposition:
            size += max(
                decomposition_bytes(len(text.input_ids), self.configs[number % 2])
                for number, text in enumerate(self.texts)
            )
        if options.heads:
            vectors = self.towers[0].inference.vectors
            size += head_occlusion_bytes(vectors.kept(options.pooling), config)
        return size

    async def explain(self, reply_bytes: int) -> list[PairExplanation]:
        """Return the explanation of each pair, in order.

        Args:
            reply_bytes: predicted size of the reply, which determines the time to write it.

        Raises:
            Unprocessable: not even the smallest useful part fits before the deadline.
            Overloaded: the queue is full, or less than half would fit beside other requests.
            EngineTimeout: the deadline came before the vectors were computed.
            ServiceError: the engine failed.

        """
        finish_by = self.towers[0].prepared.caller.finish_by
        seconds = finish_by - self.timings.began
        for tower in self.encoders:
            await tower.measure()
        writing = writing_seconds(seconds, reply_bytes)
        promises = self._promise(seconds - writing, writing)
        try:
            await self._encode()
            occlusions = [self._occlude(tower) for tower in self.encoders]
            await run_until(finish_by - writing, [self._decompose(), *occlusions])
        finally:
            for promise in promises:
                promise.end()
        return await asyncio.to_thread(lambda: [work.explanation() for work in self.works])

    def _spans(self, given: Input, text: Text) -> Sequence[AnySpan]:
        if text.picture is not None:
            return blocks_of(text, self.options.block)
        if not isinstance(given, str):
            raise TypeError("a text of a pair is a string")
        return spans_of(self.options.spans, given, text)

    def _promise(self, seconds: float, writing: float) -> list[PendingWork]:
        """PendingWork the work of each encoder, if the smallest useful part fits into the seconds.

        Raises:
            Unprocessable: it does not fit.

        """
        loads = [
            tower.load(self._of(tower, self.sides), self.towers.count(tower))
            for tower in self.encoders
        ]
        promises = []
        shares = check_time(loads, seconds)
        for tower, load, share in zip(self.encoders, loads, shares, strict=True):
            work = load.costs.work(load.sides)
            needed = needed_tokens(load.scheduler, work, share * seconds)
            promises.append(PendingWork(work.tokens, needed, writing_seconds=writing))
            tower.promise(promises[-1])
        return promises

    def _of(self, tower: Tower, values: Sequence[T]) -> list[T]:
        """Return the values of a tower's sides; `values` has both sides of each pair in turn."""
        return [value for n, value in enumerate(values) if self.towers[n % 2] is tower]

    async def _encode(self) -> None:
        """Compute the vectors of all texts, and the results that need only the hidden states."""
        for number, part in enumerate(chunks(self.works)):
            texts = [text for work in part for text in work.texts]
            outputs: dict[int, Output] = {}
            for tower in self.encoders:
                scheduler, caller = tower.prepared.scheduler, tower.prepared.caller
                places = self._of(tower, range(len(texts)))
                tasks = [tower.task(texts[place]) for place in places]
                done = await scheduler.submit("attention", tasks, caller, resumed=number > 0)
                tower.prepared.timings.add(done)
                outputs |= zip(places, (result.value for result in done), strict=True)
            ordered = [outputs[place] for place in range(len(texts))]
            await asyncio.to_thread(self._take, part, ordered)

    def _take(self, works: Sequence[PairWork], outputs: Sequence[Output]) -> None:
        """Store the outputs of both texts of some pairs."""
        for n, work in enumerate(works):
            pair = outputs[2 * n : 2 * n + 2]
            vectors = [
                tower.finish(requested(output.pooled))
                for tower, output in zip(self.towers, pair, strict=True)
            ]
            work.similarity = cosine(*vectors)
            if self.options.pairs:
                work.pairs = self._pairs(work, pair)
            if self.options.occlusion:
                shares = self._shares(work, pair, vectors)
                work.occlusions = tuple(
                    Occlusion(
                        text,
                        spans,
                        most_promising(spans, own, self.options.top),
                        tower.pooling_of(text),
                        tower.finish,
                        other,
                    )
                    for tower, text, spans, own, other in zip(
                        *(self.towers, work.texts, work.spans, shares, reversed(vectors)),
                        strict=True,
                    )
                )
            if self.options.heads:
                tower, config = self.towers[0], self.configs[0]
                shape = config.num_hidden_layers, config.num_attention_heads
                poolings = tower.pooling_of(work.texts[0]), tower.pooling_of(work.texts[1])
                without = np.full(shape, np.nan, np.float32)
                work.heads = HeadOcclusion(work.texts, poolings, tower.finish, without)

    async def _occlude(self, tower: Tower) -> None:
        """Occlude a tower's spans and heads: the first of each text, then the second, and so on."""
        prepared = tower.prepared
        occlusions = [occlusion for work in self.works for occlusion in work.occlusions]
        spans = [occlusion.jobs() for occlusion in self._of(tower, occlusions)]
        heads = chain.from_iterable(work.heads.jobs() for work in self.works if work.heads)
        jobs = in_turn([*spans, heads])
        await occlude(prepared.scheduler, prepared.caller, prepared.timings, jobs)

    async def _decompose(self) -> None:
        """Decompose both texts of each pair, one pair after another."""
        if not self.options.decomposition:
            return
        for work in self.works:
            parts = [
                await tower.decompose(text)
                for tower, text in zip(self.towers, work.texts, strict=True)
            ]
            work.decomposition = await asyncio.to_thread(pair_shares, *parts)

    def _shares(
        self, work: PairWork, outputs: Sequence[Output], vectors: Sequence[Floats]
    ) -> list[Floats]:
        """Return the share of each token of both texts, which orders their occlusions.

        With two towers, the product of the token's state, as if it alone were pooled, and the other
        text's vector.
        """
        states = [output.hidden[0] for output in outputs]
        first, second = self.towers
        if first is second:
            return shares_in_means(states, [first.first_pooled(text) for text in work.texts])
        pairs = zip(self.towers, states, reversed(vectors), strict=True)
        return [tower.projected(rows) @ other for tower, rows, other in pairs]

    def _pairs(self, work: PairWork, outputs: Sequence[Output]) -> Floats:
        """Return xᵢ · yⱼ / (S_a S_b ‖x̄‖ ‖ȳ‖) of pooled tokens, 0 of others."""
        parts, before = [], []
        for tower, text, output in zip(self.towers, work.texts, outputs, strict=True):
            start = tower.first_pooled(text)
            rows = output.hidden[0][start:]
            parts.append(tower.of_vector(requested(output.pooled), rows / np.float32(len(rows))))
            before.append((start, 0))
        return np.pad(pair_shares(*parts), before)


def shares_in_means(states: Sequence[Floats], first: Sequence[int]) -> list[Floats]:
    """Return the share of each token in the cosine of two texts' means, up to a common factor.

    Args:
        states: `[S, H]` of both texts.
        first: index of the first pooled token of each text; tokens before it get share 0.

    Returns:
        `[S]` of each text.

    """
    pooled = [rows[start:] for rows, start in zip(states, first, strict=True)]
    means = [rows.mean(axis=0) for rows in pooled]
    pairs = zip(pooled, reversed(means), first, strict=True)
    return [np.pad(rows @ mean / len(rows), (start, 0)) for rows, mean, start in pairs]


def most_promising(spans: Sequence[AnySpan], shares: Floats, top: int | None) -> list[int]:
    """Return the indices of the spans with the largest shares, the largest first.

    Args:
        spans: the spans of one text.
        shares: `[S]`, the share of each token.
        top: number of spans; all if None.

    """
    order: list[int] = np.argsort(-span_sums(spans, shares), kind="stable").tolist()
    return order[:top]
