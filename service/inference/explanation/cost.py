"""Estimated work of an explanation, the refusal of too much work, and the work to admit.

The unit of work is the time of encoding one token, the unit in which the scheduler measures
throughput.

Notation: S tokens of one text, L layers, N heads.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from model.config.encoder import EncoderConfig
from model.numerics.pooling import PoolingName
from service.errors import Unprocessable
from service.inference.explanation.decomposition import decomposition_tokens
from service.inference.explanation.spans import SpanKind
from service.scheduler.scheduler import Scheduler


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


WRITING_SHARE, MOST_WRITING_SECONDS = 0.1, 1.0
"""Fraction of a request's time that is reserved for writing the reply, and its maximum."""
WRITTEN_BYTES = 50_000_000
"""Bytes of a reply that are written per second: time added to the reserve above."""


def writing_seconds(seconds: float, reply_bytes: int) -> float:
    """Return the part of the `seconds` until a request's deadline that its reply is written in."""
    return min(WRITING_SHARE * seconds, MOST_WRITING_SECONDS) + reply_bytes / WRITTEN_BYTES


async def run_until(due: float, works: Sequence[Coroutine[None, None, None]]) -> None:
    """Run coroutines concurrently, and cancel those unfinished at `due`, by `time.monotonic()`.

    The first error of one is raised.
    """
    running = [asyncio.create_task(work) for work in works]
    seconds = None if due == math.inf else max(0.0, due - time.monotonic())
    try:
        done, _ = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


USEFUL_SHARE = 0.1
"""Fraction of the occlusion passes that an idle service must be able to compute in time."""
ADMITTED_SHARE = 0.5
"""Fraction of an idle service's work within the deadline that admission requires."""
LONGEST_TEXT = 2**16
"""Upper bound, in tokens, of the text length that an error message suggests."""


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


@dataclass(frozen=True)
class Work:
    """The work of a request."""

    tokens: int
    """Tokens of the whole request."""
    least: int
    """Tokens of the smallest useful part: the vectors, a tenth of the occlusion passes, and the
    decomposition of the first pair."""


@dataclass(frozen=True)
class Load:
    """Work of a request for one encoder."""

    scheduler: Scheduler
    """Scheduler of the engine that would compute it."""
    options: ExplainOptions
    config: EncoderConfig
    part_cost: float
    """See `decomposition_tokens`."""
    sides: Sequence[Side]
    """Texts of all pairs that the encoder encodes, in turn."""
    texts: int = 2
    """Number of texts of each pair that the encoder encodes."""

    def work(self, sides: Sequence[Side]) -> Work:
        """Return the work on some texts."""
        options, config = self.options, self.config
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
        return self.scheduler.seconds_alone("attention", self.work(sides).least)


def check_time(loads: Sequence[Load], seconds: float) -> list[float]:
    """Return the share of the time that each encoder needs; they compute one after another.

    Raises:
        Unprocessable: an idle service could not compute the smallest useful part in the seconds
            until the deadline.

    """
    alone = [load.seconds(load.sides) for load in loads]
    load, options = loads[0], loads[0].options

    def advice() -> str:
        sides = [side for own in loads for side in own.sides]
        fits = fitting_pair(sides, options, lambda pair: load.seconds(pair) <= seconds)
        return f"{fits}; {_less(options, pictures=any(side.picture for side in sides))}"

    check_least(total := sum(alone), seconds, advice)
    return [own / total if total else 1.0 for own in alone]


def check_least(alone: float, seconds: float, advice: Callable[[], str]) -> None:
    """Raise if the smallest useful part takes an idle service longer than until the deadline.

    `advice` returns how to reduce the work, for the message.
    """
    if alone > seconds:
        raise Unprocessable(
            f"the smallest useful part of this explanation takes about {alone:.1f} s on an idle "
            f"service, and there are {seconds:.1f} s to compute it (--request-timeout-seconds, or "
            f"less by the header x-request-timeout-ms): {advice()}"
        )


def needed_tokens(scheduler: Scheduler, work: Work, seconds: float) -> int:
    """Return the tokens that must fit before the deadline beside other requests.

    A request is refused if less than half of its answer would fit. If even an idle service would
    truncate the answer, half of the idle service's work is enough: the request is never refused
    for good.
    """
    alone = bisect.bisect_right(
        range(1, work.tokens + 1),
        seconds,
        key=lambda tokens: scheduler.seconds_alone("attention", tokens),
    )
    return max(work.least, math.ceil(ADMITTED_SHARE * alone))


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
