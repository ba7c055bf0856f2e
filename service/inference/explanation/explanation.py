"""Explanation of the cosine of two texts: shares of tokens, and the loss when a part is masked.

The vectors and the shares of contextual vectors are computed first. Decomposition, occlusion and
heads then run concurrently until the reply has to be written; unfinished values are left out.

Notation: S_a and S_b tokens of two texts, H hidden size, D features of a text's vector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from model.numerics.pooling import PoolingModes
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.attention.stream import CHUNK_TOKENS
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.explanation.cost import Costs, Side, check_time, needed_tokens
from service.inference.explanation.deadline import run_until, writing_seconds
from service.inference.explanation.decomposition import (
    DecomposedText,
    TextDecomposition,
    decomposition_bytes,
    pair_shares,
)
from service.inference.explanation.head_occlusion import HeadOcclusion, head_occlusion_bytes
from service.inference.explanation.occlusion import Occlusion, cosine, in_turn, occlude
from service.inference.explanation.options import ExplainOptions
from service.inference.explanation.pair_work import PairWork, chunks
from service.inference.explanation.pairs import PairExplanation
from service.inference.explanation.part_cost import part_cost
from service.inference.explanation.shares import most_promising, shares_in_means
from service.inference.explanation.spans import spans_of
from service.inference.tokenization.tokenized import TokenizedText
from service.scheduler.outputs import requested
from service.scheduler.promises import Promise


@dataclass
class Explainer:
    """Explanation of the pairs of one request."""

    inference: Inference
    prepared: PreparedTexts
    """The first and the second text of each pair, in turn."""
    options: ExplainOptions
    inputs: Sequence[str]
    """Texts as the caller sent them, in the order of `prepared`."""
    works: list[PairWork] = field(init=False)
    _pooling: PoolingModes = field(init=False)

    def __post_init__(self) -> None:
        """Determine the pooling and the spans of the texts."""
        self._pooling = self.options.pooling or self.inference.sentence.pooling
        texts, kind = self.prepared.texts, self.options.spans
        spans = [spans_of(kind, *text) for text in zip(self.inputs, texts, strict=True)]
        self.works = [
            PairWork(self.options, (texts[n], texts[n + 1]), (spans[n], spans[n + 1]))
            for n in range(0, len(texts), 2)
        ]

    @property
    def sides(self) -> list[Side]:
        """Sizes of the first and the second text of each pair, in turn."""
        return [side for work in self.works for side in work.sides]

    @property
    def bytes_at_a_time(self) -> int:
        """Peak memory of hidden states and shares, in bytes, without the explanations."""
        config, options = self.inference.config, self.options
        lengths = [sum(len(text.input_ids) for text in work.texts) for work in self.works]
        kept = options.pairs or options.occlusion
        size = 4 * min(sum(lengths), max(CHUNK_TOKENS, *lengths)) * kept * config.hidden_size
        if options.decomposition:
            longest = max(len(text.input_ids) for text in self.prepared.texts)
            size += decomposition_bytes(longest, config)
        if options.heads:
            size += head_occlusion_bytes(self.inference.vectors.kept(options.pooling), config)
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
        prepared = self.prepared
        began, finish_by = prepared.timings.began, prepared.caller.finish_by
        cost = await self._part_cost()
        seconds = finish_by - began
        writing = writing_seconds(seconds, reply_bytes)
        costs = Costs(self.options, self.inference.config, cost)
        work = check_time(prepared.scheduler, self.sides, costs, seconds - writing)
        needed = needed_tokens(prepared.scheduler, work, seconds - writing)
        promise = Promise(work.tokens, needed, writing_seconds=writing)
        caller = replace(prepared.caller, promise=promise)
        self.prepared = replace(prepared, caller=caller)
        try:
            await self._encode()
            await run_until(finish_by - writing, [self._decompose(cost), self._occlude()])
        finally:
            promise.end()
        return await asyncio.to_thread(lambda: [work.explanation() for work in self.works])

    async def _part_cost(self) -> float:
        if not self.options.decomposition:
            return 0.0
        prepared = self.prepared
        return await part_cost(self.inference, prepared.scheduler, prepared.caller)

    async def _encode(self) -> None:
        """Compute the vectors of all texts, and the results that need only the hidden states."""
        scheduler, caller = self.prepared.scheduler, self.prepared.caller
        kept = self.options.pairs or self.options.occlusion
        layers = (self.options.layer,) if kept else ()
        for number, part in enumerate(chunks(self.works)):
            tasks = [
                TextTask(text.input_ids, text.segment_ids, layers, self._pooling_of(text))
                for work in part
                for text in work.texts
            ]
            if number:
                done = await scheduler.resume("attention", tasks, caller=caller)
            else:
                done = await scheduler.submit("attention", tasks, caller)
            self.prepared.timings.add(done)
            outputs = [result.value for result in done]
            await asyncio.to_thread(self._take, part, outputs)

    def _take(self, works: Sequence[PairWork], outputs: Sequence[Output]) -> None:
        """Store the outputs of both texts of some pairs."""
        for n, work in enumerate(works):
            pair = outputs[2 * n : 2 * n + 2]
            vectors = [self._finish(requested(output.pooled)) for output in pair]
            work.similarity = cosine(*vectors)
            first = [text.first_pooled(self.inference.sentence) for text in work.texts]
            if self.options.pairs:
                work.pairs = self._pairs(pair, first)
            if self.options.occlusion:
                shares = shares_in_means([output.hidden[0] for output in pair], first)
                work.occlusions = tuple(
                    Occlusion(
                        text,
                        spans,
                        most_promising(spans, own, self.options.top),
                        self._pooling_of(text),
                        self._finish,
                        other,
                    )
                    for text, spans, own, other in zip(
                        work.texts, work.spans, shares, reversed(vectors), strict=True
                    )
                )
            if self.options.heads:
                config = self.inference.config
                shape = config.num_hidden_layers, config.num_attention_heads
                poolings = self._pooling_of(work.texts[0]), self._pooling_of(work.texts[1])
                without = np.full(shape, np.nan, np.float32)
                work.heads = HeadOcclusion(work.texts, poolings, self._finish, without)

    async def _occlude(self) -> None:
        """Occlude spans and heads: the first of each text, then the second of each, and so on."""
        prepared = self.prepared
        spans = [occlusion.jobs() for work in self.works for occlusion in work.occlusions]
        heads = chain.from_iterable(work.heads.jobs() for work in self.works if work.heads)
        jobs = in_turn([*spans, heads])
        await occlude(prepared.scheduler, prepared.caller, prepared.timings, jobs)

    async def _decompose(self, cost: float) -> None:
        """Decompose both texts of each pair, one pair after another."""
        if not self.options.decomposition:
            return
        prepared, config = self.prepared, self.inference.config
        scheduler, timings, caller = prepared.scheduler, prepared.timings, prepared.caller
        for work in self.works:
            parts = []
            for text in work.texts:
                pooling = self._pooling_of(text)
                part = TextDecomposition(scheduler, config, text, pooling, timings, cost, caller)
                decomposed = await part.result()
                parts.append(self._of_vector(decomposed.pooled, decomposed.shares))
            work.decomposition = await asyncio.to_thread(pair_shares, *parts)

    def _pooling_of(self, text: TokenizedText) -> Pooling:
        first = text.first_pooled(self.inference.sentence)
        return Pooling(self.options.layer, self._pooling, first)

    def _finish(self, pooled: Floats) -> Floats:
        return self.inference.vectors.finish([pooled], self.options.pooling)[0]

    def _pairs(self, outputs: Sequence[Output], first: Sequence[int]) -> Floats:
        """Return xᵢ · yⱼ / (S_a S_b ‖x̄‖ ‖ȳ‖) of pooled tokens, 0 of others."""
        parts = []
        for output, start in zip(outputs, first, strict=True):
            rows = output.hidden[0][start:]
            parts.append(self._of_vector(requested(output.pooled), rows / np.float32(len(rows))))
        return np.pad(pair_shares(*parts), [(start, 0) for start in first])

    def _of_vector(self, pooled: Floats, shares: Floats) -> DecomposedText:
        """Return a text's unnormalised vector and its shares, from the pooled vector's."""
        vectors, pooling = self.inference.vectors, self.options.pooling
        (vector,) = vectors.finish([pooled], pooling, normalize=False)
        return DecomposedText(vector, vectors.shares(shares, pooling))
