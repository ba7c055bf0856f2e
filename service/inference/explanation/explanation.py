"""Why the vectors of two texts are alike: shares of their cosine, and what it loses without a part.

Notation: S_a and S_b tokens of two texts, H hidden size, D features of a text's vector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from model.artifact.pooling import PoolingModes
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.attention.stream import CHUNK_TOKENS
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.explanation.decomposition import (
    DecomposedText,
    TextDecomposition,
    check_decomposable,
    decomposition_bytes,
    decomposition_tokens,
    pair_shares,
)
from service.inference.explanation.head_occlusion import (
    HeadOcclusion,
    head_occlusion_bytes,
    head_occlusion_tokens,
)
from service.inference.explanation.occlusion import (
    Job,
    Occlusion,
    cosine,
    occlude,
    occlusion_tokens,
)
from service.inference.explanation.options import ExplainOptions
from service.inference.explanation.pairs import PairExplanation
from service.inference.tokenization.tokenizer import TokenizedText
from service.scheduler.promises import Promise

Pair = tuple[TokenizedText, TokenizedText]


@dataclass
class Explainer:
    """Explains the pairs of one request, some after others."""

    inference: Inference
    prepared: PreparedTexts
    """The first and the second text of each pair, in turn."""
    options: ExplainOptions
    _pooling: PoolingModes = field(init=False)

    def __post_init__(self) -> None:
        """Find what is pooled.

        Raises:
            ReplyTooLarge: the decomposition of a text would take too much memory.

        """
        self._pooling = self.options.pooling or self.inference.sentence.pooling
        if self.options.decomposition:
            for number, text in enumerate(self.prepared.texts):
                check_decomposable(number // 2, len(text.input_ids), self.inference.config)

    @property
    def pairs(self) -> list[Pair]:
        """The texts of the request, two by two."""
        return list(zip(self.prepared.texts[::2], self.prepared.texts[1::2], strict=True))

    @property
    def bytes_at_a_time(self) -> int:
        """Most bytes of hidden states and shares that are kept beside the explanations."""
        config = self.inference.config
        lengths = [len(one.input_ids) + len(other.input_ids) for one, other in self.pairs]
        tokens = min(sum(lengths), max(CHUNK_TOKENS, *lengths)) * self.options.pairs
        size = 4 * tokens * config.hidden_size
        if self.options.decomposition:
            longest = max(len(text.input_ids) for text in self.prepared.texts)
            size += decomposition_bytes(longest, config)
        if self.options.heads:
            size += head_occlusion_bytes(self.inference.vectors.kept(self.options.pooling), config)
        return size

    async def explain(self) -> list[PairExplanation]:
        """One a pair, in order.

        Raises:
            Overloaded: the queue has no room, or the deadline cannot be met.
            EngineTimeout: the deadline came.
            ServiceError: the engine failed.

        """
        promise = Promise(self._tokens())
        caller = replace(self.prepared.caller, promise=promise)
        self.prepared = replace(self.prepared, caller=caller)
        try:
            return await self._explained()
        finally:
            promise.end()

    async def _explained(self) -> list[PairExplanation]:
        found: list[PairExplanation] = []
        for part in _chunks(self.pairs):
            texts = [text for pair in part for text in pair]
            outputs = await self._encode(texts, first=not found)
            vectors = [self._finish(_pooled(output)) for output in outputs]
            without: list[NDArray[np.float64]] = []
            if self.options.occlusion:
                without = await self._without(texts, vectors)
            for n in range(0, len(texts), 2):
                similarity = cosine(*vectors[n : n + 2])
                shares = await self._shares(texts[n : n + 2], outputs[n : n + 2])
                losses = _losses(similarity, without[n : n + 2])
                heads = None
                if self.options.heads:
                    heads = similarity - await self._without_heads(texts[n : n + 2])
                found.append(PairExplanation(similarity, *shares, losses, heads))
        return found

    async def _encode(self, texts: Sequence[TokenizedText], *, first: bool) -> list[Output]:
        """The texts' vectors, and their tokens' where they are needed."""
        options, prepared = self.options, self.prepared
        layers = (options.layer,) if options.pairs else ()
        tasks = [
            TextTask(text.input_ids, text.segment_ids, layers, self._pooling_of(text))
            for text in texts
        ]
        scheduler, caller = prepared.scheduler, prepared.caller
        if first:
            done = await scheduler.submit("attention", tasks, caller)
        else:
            done = await scheduler.resume("attention", tasks, caller=caller)
        prepared.timings.add(done)
        return [result.output for result in done]

    def _tokens(self) -> int:
        """Tokens that take as long to encode as all that is asked for."""
        total = 0
        for text in self.prepared.texts:
            tokens = len(text.input_ids)
            total += tokens
            total += occlusion_tokens(tokens) * self.options.occlusion
            total += head_occlusion_tokens(tokens, self.inference.config) * self.options.heads
            if self.options.decomposition:
                total += decomposition_tokens(tokens, self.options.layer, self.inference.config)
        return total

    def _pooling_of(self, text: TokenizedText) -> Pooling:
        first = text.first_pooled(self.inference.sentence)
        return Pooling(self.options.layer, self._pooling, first)

    def _finish(self, pooled: Floats) -> Floats:
        return self.inference.vectors.finish([pooled], self.options.pooling)[0]

    async def _without(
        self, texts: Sequence[TokenizedText], vectors: Sequence[Floats]
    ) -> list[NDArray[np.float64]]:
        """Of each text `[S]`, the similarities of its pair without each token."""
        occlusions = [
            Occlusion(
                text,
                self._pooling_of(text),
                self._finish,
                other=vectors[n ^ 1],
                without=np.zeros(len(text.input_ids)),
            )
            for n, text in enumerate(texts)
        ]
        await self._occlude(job for one in occlusions for job in one.jobs())
        return [one.without for one in occlusions]

    async def _without_heads(self, texts: Sequence[TokenizedText]) -> Floats:
        """`[L, N]`: the similarity of a pair without each head."""
        one, other = texts
        poolings = self._pooling_of(one), self._pooling_of(other)
        width, config = self.inference.vectors.kept(self.options.pooling), self.inference.config
        shape = 2, config.num_hidden_layers, config.num_attention_heads, width
        occlusion = HeadOcclusion((one, other), poolings, self._finish, np.empty(shape, np.float32))
        await self._occlude(occlusion.jobs())
        return await asyncio.to_thread(occlusion.similarities)

    async def _occlude(self, jobs: Iterable[Job]) -> None:
        prepared = self.prepared
        await occlude(prepared.scheduler, prepared.caller, prepared.timings, jobs)

    async def _shares(
        self, texts: Sequence[TokenizedText], outputs: Sequence[Output]
    ) -> tuple[Floats | None, Floats | None]:
        """Of a pair, `pairs` and `decomposition`."""
        pairs = decomposition = None
        if self.options.pairs:
            pairs = await asyncio.to_thread(self._pairs, texts, outputs)
        if self.options.decomposition:
            decomposition = await self._decomposed(texts)
        return pairs, decomposition

    def _pairs(self, texts: Sequence[TokenizedText], outputs: Sequence[Output]) -> Floats:
        """xᵢ · yⱼ / (S_a S_b ‖x̄‖ ‖ȳ‖) of tokens that are pooled, 0 of others."""
        first = [text.first_pooled(self.inference.sentence) for text in texts]
        parts = []
        for output, start in zip(outputs, first, strict=True):
            rows = output.hidden[0][start:]
            parts.append(self._of_vector(_pooled(output), rows / np.float32(len(rows))))
        return np.pad(pair_shares(*parts), [(start, 0) for start in first])

    async def _decomposed(self, texts: Sequence[TokenizedText]) -> Floats:
        prepared, config = self.prepared, self.inference.config
        scheduler, timings, caller = prepared.scheduler, prepared.timings, prepared.caller
        parts = []
        for text in texts:
            pooling = self._pooling_of(text)
            part = TextDecomposition(scheduler, config, text, pooling, timings, caller)
            found = await part.result()
            parts.append(self._of_vector(found.pooled, found.shares))
        return await asyncio.to_thread(pair_shares, *parts)

    def _of_vector(self, pooled: Floats, shares: Floats) -> DecomposedText:
        """A pooled vector and its shares → those of the text's vector, before it is normalised."""
        vectors, pooling = self.inference.vectors, self.options.pooling
        (vector,) = vectors.finish([pooled], pooling, normalize=False)
        return DecomposedText(vector, vectors.shares(shares, pooling))


def _pooled(output: Output) -> Floats:
    assert output.pooled is not None  # noqa: S101 - the scheduler has checked every output
    return output.pooled


def _losses(
    similarity: float, without: Sequence[NDArray[np.float64]]
) -> tuple[Floats, Floats] | None:
    """What is lost without each token of two texts; None where nothing was occluded."""
    if not without:
        return None
    one, other = ((similarity - each).astype(np.float32) for each in without)
    return one, other


def _chunks(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """Neighbours that have at most `CHUNK_TOKENS` together."""
    start = tokens = 0
    for number, pair in enumerate(pairs):
        own = sum(len(text.input_ids) for text in pair)
        if number > start and tokens + own > CHUNK_TOKENS:
            yield pairs[start:number]
            start, tokens = number, 0
        tokens += own
    yield pairs[start:]
