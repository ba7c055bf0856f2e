"""Explanation of the cosine of two texts or pictures: shares, and the loss when a part is masked.

The vectors and the shares of contextual vectors are computed first. Decomposition, occlusion and
heads then run concurrently until the reply has to be written; unfinished values are left out.

Notation: S tokens of a text, S_a and S_b of two, W spans of a text, H hidden size, D features of a
text's vector, L layers, N heads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np

from model.config.encoder import EncoderConfig
from model.numerics.pooling import PoolingModes
from model.numerics.similarity import spearman
from model.runtimes.capabilities import Decomposition
from service.engines.contract import Floats, Output
from service.errors import NoEmbeddings, Unprocessable
from service.inference.attention.stream import CHUNK_TOKENS, runs
from service.inference.core import Inference
from service.inference.explanation.decomposition import decomposition_bytes, pair_shares
from service.inference.explanation.occlusion import (
    Occlusion,
    cosine,
    head_occlusion,
    head_occlusion_bytes,
    in_turn,
    occlude,
    promised,
    run_until,
)
from service.inference.explanation.spans import AnySpan, SpanKind, blocks_of, span_sums, spans_of
from service.inference.explanation.tower import ExplainOptions, Side, Tower
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested


def check_explainable(inference: Inference, options: ExplainOptions) -> None:
    """Raise if the model does not support the requested analyses."""
    task = inference.manifest.task
    if task is not None:
        raise NoEmbeddings(
            f"/explain does not explain {inference.manifest.model}: ask /rank for the scores of a "
            "reranker or a hybrid model, or serve an embedding model, a sparse encoder or a "
            "late-interaction model"
        )
    inference.require_use("vectors")
    if options.pairs or options.layer != inference.config.num_hidden_layers:
        inference.require_use("heads")
    mode = options.pooling or inference.sentence.pooling
    if options.pairs and mode != "mean":
        raise Unprocessable(
            f"pairs are shares of means over tokens, and this is pooling {_named(mode)}: ask for "
            'pooling "mean", or leave pairs out of `include`'
        )
    if (options.pairs or options.decomposition) and not inference.vectors.additive(options.pooling):
        raise Unprocessable(
            "this model has modules after pooling that are not linear, through which the shares of "
            'tokens do not add up: ask for include ["occlusion"]'
        )
    if options.decomposition:
        inference.require(Decomposition)
    if options.heads:
        inference.require_heads()


def _named(mode: PoolingModes) -> str:
    return mode if isinstance(mode, str) else " + ".join(mode)


@dataclass
class PairExplanation:
    """Values that explain a similarity: None if not requested, NaN if not computed."""

    similarity: float = np.nan
    """Cosine of the two vectors."""
    pairs: Floats | None = None
    """`[S_a, S_b]`: shares of token pairs, which sum to the similarity."""
    decomposition: Floats | None = None
    """`[S_a, S_b]`: shares of pairs of input tokens, which sum to the similarity."""
    occlusion: tuple[Floats, Floats] | None = None
    """`[W_a]` and `[W_b]`: similarity minus the similarity without the span."""
    spans: tuple[Sequence[AnySpan], Sequence[AnySpan]] = ((), ())
    """The spans of `occlusion`."""
    span_kind: SpanKind = "tokens"
    heads: Floats | None = None
    """`[L, N]`: similarity minus the similarity with the head ablated in both texts."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Number of values to compute, by method; 1 for a decomposition."""

    @property
    def shares(self) -> dict[str, Floats]:
        """Matrices that were requested, by method."""
        named = {"pairs": self.pairs, "decomposition": self.decomposition}
        return {name: matrix for name, matrix in named.items() if matrix is not None}

    @property
    def computed(self) -> dict[str, int]:
        """Number of values computed before the deadline, by method, counted as in `wanted`."""
        values: dict[str, Sequence[Floats]] = {
            "occlusion": self.occlusion or (),
            "decomposition": () if self.decomposition is None else (self.decomposition[:1, :1],),
            "heads": () if self.heads is None else (self.heads,),
        }
        return {
            name: sum(int(np.count_nonzero(~np.isnan(part))) for part in values[name])
            for name in self.wanted
        }

    @property
    def partial(self) -> bool:
        """Whether the deadline came before all requested values were computed."""
        return self.computed != dict(self.wanted)

    def error(self, matrix: Floats) -> float:
        """Return |sum of the shares − similarity|; NaN if the shares were not computed."""
        return abs(float(matrix.sum(dtype=np.float64)) - self.similarity)

    def agreement(self) -> dict[str, float | None]:
        """Return Spearman's correlation of each method's sums over spans with the occlusion losses.

        The correlation is over the occluded spans of both texts; None if all sums or all losses
        are equal, or the method was not computed. The result is empty without occlusion.
        """
        if self.occlusion is None:
            return {}
        losses = np.concatenate(self.occlusion)
        known = ~np.isnan(losses)
        correlations: dict[str, float | None] = {}
        for name, matrix in self.shares.items():
            sides = zip(self.spans, (matrix.sum(axis=1), matrix.sum(axis=0)), strict=True)
            sums = np.concatenate([span_sums(spans, values) for spans, values in sides])
            correlation = np.nan if np.isnan(sums).any() else spearman(sums[known], losses[known])
            correlations[name] = None if np.isnan(correlation) else correlation
        return correlations


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
    pairs: Sequence[PairExplanation] = field(init=False)
    _occlusions: list[Occlusion] = field(default_factory=list, init=False)
    """Occlusion of each text, in turn; empty if it is not requested."""
    _heads: list[Occlusion] = field(default_factory=list, init=False)
    """Occlusion of the heads for each pair; empty if it is not requested."""

    def __post_init__(self) -> None:
        """Determine the spans of the texts."""
        spans = [self._spans(*text) for text in zip(self.inputs, self.texts, strict=True)]
        self.pairs = [
            PairExplanation(spans=both, span_kind=self.options.spans)
            for both in zip(spans[::2], spans[1::2], strict=True)
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
        top = self.options.top
        return [
            Side(text.size, len(spans), min(len(spans), top or len(spans)), bool(text.picture))
            for text, spans in zip(
                self.texts, chain(*(pair.spans for pair in self.pairs)), strict=True
            )
        ]

    @property
    def timings(self) -> Timings:
        """Timings of the request."""
        first, *second = [tower.prepared.timings for tower in self.encoders]
        return sum(second, first)

    @property
    def bytes_at_a_time(self) -> int:
        """Peak memory of hidden states and shares, in bytes, without the explanations."""
        config, options = max(self.configs, key=lambda config: config.hidden_size), self.options
        lengths = self._lengths
        kept = options.pairs or options.occlusion
        size = 4 * min(sum(lengths), max(CHUNK_TOKENS, *lengths)) * kept * config.hidden_size
        if options.decomposition:
            size += max(
                decomposition_bytes(text.size, self.configs[number % 2])
                for number, text in enumerate(self.texts)
            )
        if options.heads:
            vectors = self.towers[0].inference.vectors
            size += head_occlusion_bytes(vectors.kept(options.pooling), config)
        return size

    @property
    def _lengths(self) -> list[int]:
        """Number of tokens of each pair."""
        sizes = [text.size for text in self.texts]
        return [*map(sum, zip(sizes[::2], sizes[1::2], strict=True))]

    async def explain(self, reply_bytes: int) -> Sequence[PairExplanation]:
        """Return the explanation of each pair, in order; `reply_bytes` take time to write.

        Raises:
            Unprocessable: not even the smallest useful part fits before the deadline.
            Overloaded: the queue is full, or less than half would fit beside other requests.
            EngineTimeout: the deadline came before the vectors were computed.

        """
        for tower in self.encoders:
            await tower.measure()
        sides = self.sides
        works = [(tower.prepared, tower.work(self._of(tower, sides))) for tower in self.encoders]
        advice = partial(self.towers[0].advice, sides)
        with promised(works, self.timings.began, reply_bytes, advice) as (reserved, due):
            for tower, prepared in zip(self.encoders, reserved, strict=True):
                tower.prepared = prepared
            await self._encode()
            occlusions = [self._occlude(tower) for tower in self.encoders]
            await run_until(due, [self._decompose(), *occlusions])
        await asyncio.to_thread(self._settle)
        return self.pairs

    def _spans(self, given: Input, text: Text) -> Sequence[AnySpan]:
        if text.picture is not None:
            return blocks_of(text, self.options.block)
        if not isinstance(given, str):
            raise TypeError("a text of a pair is a string")
        return spans_of(self.options.spans, given, text)

    def _of(self, tower: Tower, values: Sequence[T]) -> list[T]:
        """Return the values of a tower's sides; `values` has both sides of each pair in turn."""
        return [value for n, value in enumerate(values) if self.towers[n % 2] is tower]

    async def _encode(self) -> None:
        """Compute the vectors of all texts, and the results that need only the hidden states."""
        lengths = self._lengths
        for pairs in runs(range(len(lengths)), lambda pair: [lengths[pair]], [CHUNK_TOKENS]):
            outputs: dict[int, Output] = {}
            numbers = range(2 * pairs[0], 2 * pairs[-1] + 2)
            for tower in self.encoders:
                own, resumed = self._of(tower, numbers), numbers.start > 0
                tasks = [tower.whole_task(self.texts[number]) for number in own]
                done = await tower.prepared.submit("attention", tasks, resumed=resumed)
                outputs |= zip(own, done, strict=True)
            await asyncio.to_thread(self._take, pairs, outputs)

    def _take(self, pairs: Sequence[int], outputs: Mapping[int, Output]) -> None:
        """Compute the similarity of some pairs, and what follows from their outputs."""
        for number in pairs:
            pair, options, sides = (
                self.pairs[number],
                self.options,
                slice(2 * number, 2 * number + 2),
            )
            texts, found = (
                self.texts[sides],
                [outputs[side] for side in range(sides.start, sides.stop)],
            )
            vectors = [
                tower.vector(output) for tower, output in zip(self.towers, found, strict=True)
            ]
            pair.similarity = cosine(*vectors)
            if options.pairs:
                pair.pairs = self._pairs(texts, found)
            if options.occlusion:
                own = self.towers, texts, pair.spans, self._shares(texts, found, vectors)
                for tower, text, spans, shares, other in zip(*own, vectors[::-1], strict=True):
                    order = most_promising(spans, shares, options.top)
                    self._occlusions.append(tower.occlusion(text, spans, order, other))
            if options.decomposition:
                pair.decomposition = np.full([text.size for text in texts], np.nan, np.float32)
            if options.heads:
                tower = self.towers[0]
                tasks = [requested(tower.task(text)) for text in texts]
                self._heads.append(head_occlusion(tasks, tower.vector, self.configs[0]))

    async def _occlude(self, tower: Tower) -> None:
        """Occlude a tower's spans and heads: the first of each text, then the second, and so on."""
        spans = [occlusion.jobs() for occlusion in self._of(tower, self._occlusions)]
        heads = chain.from_iterable(occlusion.jobs() for occlusion in self._heads)
        await occlude(tower.prepared, in_turn([*spans, heads]))

    async def _decompose(self) -> None:
        """Decompose both texts of each pair, one pair after another."""
        for number, pair in enumerate(self.pairs if self.options.decomposition else ()):
            sides = zip(self.towers, self.texts[2 * number : 2 * number + 2], strict=True)
            parts = [await tower.decompose(text) for tower, text in sides]
            pair.decomposition = await asyncio.to_thread(pair_shares, *parts)

    def _settle(self) -> None:
        """Copy the losses computed so far, and count the requested values."""
        for number, pair in enumerate(self.pairs):
            wanted: dict[str, int] = {}
            if sides := self._occlusions[2 * number : 2 * number + 2]:
                first, second = (pair.similarity - side.scores for side in sides)
                pair.occlusion = first.astype(np.float32), second.astype(np.float32)
                wanted["occlusion"] = sum(len(side.order) for side in sides)
            if pair.decomposition is not None:
                wanted["decomposition"] = 1
            if self._heads:
                losses = (pair.similarity - self._heads[number].scores).astype(np.float32)
                pair.heads = losses.reshape(self.configs[0].num_hidden_layers, -1)
                wanted["heads"] = losses.size
            pair.wanted = wanted

    def _shares(
        self, texts: Sequence[Text], outputs: Sequence[Output], vectors: Sequence[Floats]
    ) -> list[Floats]:
        """Return the share of each token of both texts, which orders their occlusions.

        With two towers, the product of the token's state, as if it alone were pooled, and the other
        text's vector.
        """
        states = [output.hidden[0] for output in outputs]
        first, second = self.towers
        if first is second:
            return shares_in_means(states, [first.pooling(text).first_token for text in texts])
        pairs = zip(self.towers, states, reversed(vectors), strict=True)
        return [tower.projected(rows) @ other for tower, rows, other in pairs]

    def _pairs(self, texts: Sequence[Text], outputs: Sequence[Output]) -> Floats:
        """Return xᵢ · yⱼ / (S_a S_b ‖x̄‖ ‖ȳ‖) of pooled tokens, 0 of others."""
        parts, before = [], []
        for tower, text, output in zip(self.towers, texts, outputs, strict=True):
            parts.append(tower.mean_shares(text, output))
            before.append((tower.pooling(text).first_token, 0))
        return np.pad(pair_shares(*parts), before)


def shares_in_means(states: Sequence[Floats], first: Sequence[int]) -> list[Floats]:
    """Return the share of each token in the cosine of two texts' means, up to a common factor.

    `first` has the index of the first pooled token of each text; tokens before it get share 0.
    `[S, H]` and `[S, H]` → `[S]` and `[S]`.
    """
    pooled = [rows[start:] for rows, start in zip(states, first, strict=True)]
    means = [rows.mean(axis=0) for rows in pooled]
    pairs = zip(pooled, reversed(means), first, strict=True)
    return [np.pad(rows @ mean / len(rows), (start, 0)) for rows, mean, start in pairs]


def most_promising(spans: Sequence[AnySpan], shares: Floats, top: int | None) -> list[int]:
    """Return the indices of the `top`, or all, spans by falling share of their tokens, `[S]`."""
    order: list[int] = np.argsort(-span_sums(spans, shares), kind="stable").tolist()
    return order[:top]
