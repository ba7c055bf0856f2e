"""Encoder of an explanation: its vectors of texts, their parts, and the work on them.

Notation: S tokens of one text, W spans of it, D features of its vector, L layers, N heads.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from model.numerics.pooling import PoolingName
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.explanation.decomposition import (
    DecomposedText,
    decompose,
    decomposition_tokens,
    part_cost,
)
from service.inference.explanation.occlusion import USEFUL_SHARE, Occlusion, Part, Work, cosine
from service.inference.explanation.spans import AnySpan, SpanKind
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

LONGEST_TEXT = 2**16
"""Upper bound, in tokens, of the text length that an error message suggests."""


@dataclass(eq=False)
class Embedder:
    """Vectors of texts by a pooling of a hidden state, and the shares of tokens in them."""

    inference: Inference
    layer: int
    mode: PoolingName | None = None
    """Pooling mode; the checkpoint's own if None."""

    def pooling(self, text: Text, unseen: Part = ()) -> Pooling:
        """Return the pooling of a text without the tokens that are left out."""
        sentence = self.inference.sentence
        first = text.first_pooled(sentence)
        left_out = tuple(token for token in unseen if token >= first)
        return Pooling(self.layer, self.mode or sentence.pooling, first, left_out)

    def task(self, text: Text, unseen: Part = (), *, states: bool = False) -> TextTask | None:
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


class Tower(Embedder):
    """Encoder of one or both sides of each pair."""

    def __init__(
        self,
        inference: Inference,
        options: ExplainOptions,
        prepared: PreparedTexts,
        texts: int = 2,
        part_cost: float = 0.0,
    ) -> None:
        """Initialise from the options of this encoder, and the texts or pictures of its sides.

        `texts` of each pair are its sides. `part_cost` is 0 until it is measured: see
        `decomposition_tokens`.
        """
        super().__init__(inference, options.layer, options.pooling)
        self.options, self.prepared, self.texts = options, prepared, texts
        self.part_cost = part_cost

    async def measure(self) -> None:
        """Measure the cost of a decomposition, if one is requested."""
        if self.options.decomposition:
            scheduler, caller = self.prepared.scheduler, self.prepared.caller
            self.part_cost = await part_cost(self.inference, scheduler, caller)

    def whole_task(self, text: Text) -> TextTask:
        """Return the forward pass that gives a text's vector, and its states if they are needed."""
        states = self.options.pairs or self.options.occlusion
        return requested(self.task(text, states=states))

    def occlusion(
        self, text: Text, spans: Sequence[AnySpan], order: Sequence[int], other: Floats
    ) -> Occlusion:
        """Return the occlusion of a text's spans in its cosine with the other vector."""

        def tasks(unseen: Part) -> list[TextTask]:
            task = self.task(text, unseen)
            return [task] if task else []

        def score(_: Part, outputs: Sequence[Output]) -> float:
            return cosine(self.vector(outputs[0]), other)

        return Occlusion([span.tokens for span in spans], order, tasks, score)

    async def decompose(self, text: Text) -> DecomposedText:
        """Return a text's unnormalised vector, and the share of each input token in it."""
        pooling, config = self.pooling(text), self.inference.config
        parts_of = self.inference.vectors.pooled_parts
        found = await decompose(self.prepared, config, text, pooling, self.part_cost, parts_of)
        return self.decomposed(found.pooled, found.shares)

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

    def advice(self, sides: Sequence[Side], seconds: float) -> str:
        """Return how to reduce the work of a request until a part of it fits into the seconds."""

        def fits(pair: Sequence[Side]) -> bool:
            return self.prepared.scheduler.seconds_alone(self.work(pair).least) <= seconds

        options, less = self.options, ["send fewer pairs or shorter texts"]
        if options.decomposition:
            less.append('leave "decomposition" out of `include`')
        if options.heads:
            less.append('leave "heads" out of `include`')
        if options.occlusion:
            less.append('occlude `spans` "words" or "sentences", or the `top` ones alone')
            if any(side.picture for side in sides):
                less.append("occlude larger `block`s of patches")
        return f"{fitting_pair(sides, options, fits)}; {', or '.join(less)}"


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
