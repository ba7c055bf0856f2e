"""Encoder of an explanation: its vectors of texts, their parts, and the work on them.

Notation: S tokens of one text, W spans of it, D features of its vector, L layers, N heads.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from model.numerics.pooling import PoolingName
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.explanation.decomposition import (
    DecomposedText,
    TextDecomposition,
    decomposition_tokens,
    part_cost,
)
from service.inference.explanation.occlusion import (
    USEFUL_SHARE,
    Occlusion,
    Tokens,
    Work,
    check_least,
    cosine,
)
from service.inference.explanation.spans import AnySpan, SpanKind
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

LONGEST_TEXT = 2**16
"""Upper bound, in tokens, of the text length that an error message suggests."""


@dataclass(frozen=True)
class Embedder:
    """Vectors of texts by a pooling of a hidden state, and the shares of tokens in them."""

    inference: Inference
    layer: int
    mode: PoolingName | None = None
    """Pooling mode; the checkpoint's own if None."""

    def pooling(self, text: Text, unseen: Tokens = ()) -> Pooling:
        """Return the pooling of a text without the tokens that are left out."""
        sentence = self.inference.sentence
        first = text.first_pooled(sentence)
        left_out = tuple(token for token in unseen if token >= first)
        return Pooling(self.layer, self.mode or sentence.pooling, first, left_out)

    def task(self, text: Text, unseen: Tokens = (), *, states: bool = False) -> TextTask | None:
        """Return a text's forward pass without some tokens; None if no pooled token is left."""
        pooling, layers = self.pooling(text, unseen), (self.layer,) if states else ()
        if len(pooling.left_out) == text.size - pooling.first_token:
            return None
        ids, segments = text.input_ids, text.segment_ids
        return TextTask(ids, segments, layers, pooling, unseen=unseen, pixels=text.pixels)

    def vector(self, output: Output) -> Floats:
        """Return the vector of a text from the output of its forward pass."""
        return self.inference.vectors.finish([requested(output.pooled)], self.mode)[0]

    def projected(self, states: Floats) -> Floats:
        """Return each token's state as if it alone were pooled: `[S, H]` → `[S, D]`."""
        return np.stack(self.inference.vectors.finish([*states], self.mode, normalize=False))

    def decomposed(self, pooled: Floats, shares: Floats) -> DecomposedText:
        """Return a text's unnormalised vector and its shares, from the pooled vector's."""
        vectors = self.inference.vectors
        (vector,) = vectors.finish([pooled], self.mode, normalize=False)
        return DecomposedText(vector, vectors.shares(shares, self.mode))

    def mean_shares(self, text: Text, output: Output) -> DecomposedText:
        """Return a text's unnormalised vector, a mean, and the share of each pooled token in it."""
        rows = output.hidden[0][self.pooling(text).first_token :]
        return self.decomposed(requested(output.pooled), rows / np.float32(len(rows)))


@dataclass(frozen=True)
class ExplainOptions:
    """Analyses that a caller requests of each pair of texts."""

    layer: int
    """Hidden state that is pooled, 0 … L."""
    pooling: PoolingName | None
    """Pooling mode; the checkpoint's own if None."""
    pairs: bool
    """Whether to compute the share of each pair of tokens."""
    occlusion: bool
    """Whether to compute the loss of similarity without each span."""
    decomposition: bool
    """Whether to compute the share of each pair of input tokens."""
    heads: bool
    """Whether to compute the loss of similarity without each head."""
    spans: SpanKind = "tokens"
    """Kind of the spans that occlusion masks as a whole."""
    top: int | None = None
    """Number of spans of each text to occlude, the most promising first; all if None."""
    block: int = 1
    """Patches along the edge of the squares of a picture that occlusion masks as a whole."""


@dataclass(frozen=True)
class Side:
    """Sizes of one text of a pair."""

    tokens: int
    """S."""
    spans: int
    """Number of spans."""
    occluded: int
    """Number of spans that are occluded."""
    picture: bool = False
    """Whether it is a picture, which always has the same number of tokens."""


@dataclass(eq=False)
class Tower:
    """Encoder of one or both sides of each pair."""

    inference: Inference
    options: ExplainOptions
    """Options of the request, with the layer of this encoder."""
    prepared: PreparedTexts
    """Texts or pictures of its sides, its scheduler, and the client of the request."""
    texts: int = 2
    """Number of texts of each pair that the encoder encodes."""
    part_cost: float = 0.0
    """See `decomposition_tokens`; 0 until it is measured."""
    embedder: Embedder = field(init=False)

    def __post_init__(self) -> None:
        """Embed with the options' pooling."""
        self.embedder = Embedder(self.inference, self.options.layer, self.options.pooling)

    async def measure(self) -> None:
        """Measure the cost of a decomposition, if one is requested."""
        if self.options.decomposition:
            scheduler, caller = self.prepared.scheduler, self.prepared.caller
            self.part_cost = await part_cost(self.inference, scheduler, caller)

    def task(self, text: Text) -> TextTask:
        """Return the forward pass that gives a text's vector, and its states if they are needed."""
        states = self.options.pairs or self.options.occlusion
        return requested(self.embedder.task(text, states=states))

    def occlusion(
        self, text: Text, spans: Sequence[AnySpan], order: Sequence[int], other: Floats
    ) -> Occlusion:
        """Return the occlusion of a text's spans in its cosine with the other vector."""

        def score(output: Output, _: Tokens) -> float:
            return cosine(self.embedder.vector(output), other)

        task, parts = partial(self.embedder.task, text), [span.tokens for span in spans]
        return Occlusion(parts, order, task, score, empty_score=0.0)

    async def decompose(self, text: Text) -> DecomposedText:
        """Return a text's unnormalised vector, and the share of each input token in it."""
        pooling, config = self.embedder.pooling(text), self.inference.config
        parts_of = self.inference.vectors.pooled_parts
        steps = TextDecomposition(self.prepared, config, text, pooling, self.part_cost, parts_of)
        decomposed = await steps.result()
        return self.embedder.decomposed(decomposed.pooled, decomposed.shares)

    def work(self, sides: Sequence[Side]) -> Work:
        """Return the work on some texts; the least is of the first pair's decomposition alone."""
        options, config = self.options, self.inference.config
        encoded = sum(side.tokens for side in sides)
        heads = config.num_hidden_layers * config.num_attention_heads * options.heads
        passes = sum(side.tokens * (side.occluded * options.occlusion + heads) for side in sides)
        decomposed = [0] * len(sides)
        if options.decomposition:
            decomposed = [
                decomposition_tokens(side.tokens, options.layer, config, self.part_cost)
                for side in sides
            ]
        least = encoded + math.ceil(USEFUL_SHARE * passes) + sum(decomposed[: self.texts])
        return Work(encoded + passes + sum(decomposed), least)

    def seconds(self, sides: Sequence[Side]) -> float:
        """Return the seconds of the smallest useful part for some texts on an idle service."""
        return self.prepared.scheduler.seconds_alone(self.work(sides).least)


def check_time(towers: Mapping[Tower, Sequence[Side]], seconds: float) -> list[float]:
    """Return the share of the time that each encoder needs; they compute one after another."""
    alone = [tower.seconds(sides) for tower, sides in towers.items()]
    first = next(iter(towers))

    def advice() -> str:
        sides = [side for own in towers.values() for side in own]
        fits = fitting_pair(sides, first.options, lambda pair: first.seconds(pair) <= seconds)
        return f"{fits}; {_less(first.options, pictures=any(side.picture for side in sides))}"

    check_least(total := sum(alone), seconds, advice)
    return [own / total if total else 1.0 for own in alone]


def fitting_pair(
    sides: Sequence[Side], options: ExplainOptions, fits: Callable[[Sequence[Side]], bool]
) -> str:
    """Return a sentence with the longest pair of texts that fits, unless one is a picture.

    The texts that do not fit determine the number of spans per token. `fits` is monotone in the
    texts' length.
    """
    if any(side.picture for side in sides):
        return "a picture always has the same number of tokens"
    share = sum(side.spans for side in sides) / sum(side.tokens for side in sides)

    def too_long(tokens: int) -> bool:
        spans = math.ceil(share * tokens)
        return not fits([Side(tokens, spans, min(spans, options.top or spans))] * 2)

    most = bisect.bisect_left(range(1, LONGEST_TEXT), True, key=too_long)
    return (
        f"one pair of texts of up to {most} tokens each fits" if most else "no pair of texts fits"
    )


def _less(options: ExplainOptions, *, pictures: bool) -> str:
    """Return advice on how to reduce the work of a request."""
    advice = ["send fewer pairs or shorter texts"]
    if options.decomposition:
        advice.append('leave "decomposition" out of `include`')
    if options.heads:
        advice.append('leave "heads" out of `include`')
    if options.occlusion:
        advice.append('occlude `spans` "words" or "sentences", or the `top` ones alone')
        if pictures:
            advice.append("occlude larger `block`s of patches")
    return ", or ".join(advice)
