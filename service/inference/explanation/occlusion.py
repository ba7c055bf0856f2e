"""Occlusion: a score while a part of a text is neither attended to nor pooled; and its deadline.

Occluding a part equals `attention_mask` 0 at all its tokens in transformers and in the pooling of
sentence-transformers; the positions of the other tokens stay. To the engine, each occlusion of a
text is a text.

Heads are ablated one at a time, as in Michel et al. 2019 (arXiv 1905.10650): the head's output is
multiplied by zero before the output projection.

The unit of work is the time of encoding one token, the unit in which the scheduler measures
throughput.

Notation: S tokens of one text, W parts of it, D features of a text's vector.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, Output, TextTask
from service.errors import Unprocessable
from service.inference.attention.stream import runs
from service.inference.encoding import PreparedTexts
from service.scheduler.scheduler import Scheduler

SLICE_TOKENS = 4096
"""Maximum tokens of a slice of texts that is queued at once; a longer text is a slice alone."""
SLICES = 2
"""Number of slices in the queue at a time, so that no worker is idle at the end of a slice."""
Tokens = tuple[int, ...]
"""Indices of a part's tokens in a text."""
Job = tuple[TextTask, Callable[[Output], None]]
"""Forward pass, and the function that stores its output in the thread that computed it."""


@dataclass(frozen=True)
class Occlusion:
    """A text whose parts are left out one at a time."""

    parts: Sequence[Tokens]
    order: Sequence[int]
    """Indices of the parts that are left out, in the order in which they are computed."""
    task: Callable[[Tokens], TextTask | None]
    """Function from tokens to the forward pass without them; None if nothing would be left."""
    score: Callable[[Output, Tokens], float]
    """Function from the output of a forward pass, and the tokens without it, to the score."""
    empty_score: float
    """Score of a text of which nothing is left."""
    scores: NDArray[np.float64] = field(init=False)
    """`[W]`: score without each part; NaN where it is not computed."""

    def __post_init__(self) -> None:
        """Fill `scores` with NaN."""
        object.__setattr__(self, "scores", np.full(len(self.parts), np.nan))

    def jobs(self) -> Iterator[Job]:
        """Yield a forward pass for each part, and the function that stores its score."""
        for number in self.order:
            task = self.task(self.parts[number])
            if task is None:
                self.scores[number] = self.empty_score
            else:
                yield task, partial(self._store, number)

    def _store(self, number: int, output: Output) -> None:
        self.scores[number] = self.score(output, self.parts[number])


def cosine(one: Floats, other: Floats) -> float:
    """Return the cosine of two vectors; 0 if either is the zero vector."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def in_turn(jobs: Iterable[Iterable[Job]]) -> Iterator[Job]:
    """Yield the first job of each list, then the second of each, and so on."""
    rounds = itertools.zip_longest(*jobs)
    return (job for each in rounds for job in each if job is not None)


async def occlude(prepared: PreparedTexts, jobs: Iterable[Job]) -> None:
    """Run the forward passes of an admitted request in slices."""
    running: deque[asyncio.Task[list[None]]] = deque()
    try:
        for part in runs(jobs, lambda job: [job[0].tokens], [SLICE_TOKENS]):
            if len(running) == SLICES:
                await running.popleft()
            tasks, reduce = [task for task, _ in part], [store for _, store in part]
            passes = prepared.submit("attention", tasks, reduce, resumed=True)
            running.append(asyncio.create_task(passes))
        while running:
            await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


Head = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True)
class HeadOcclusion:
    """Two texts, in which each head is ablated once, layer by layer."""

    tasks: Sequence[TextTask]
    """Forward pass of each text with all heads."""
    vector: Callable[[Output], Floats]
    """Function from the output of a forward pass to the vector of its text."""
    similarities: Floats
    """`[L, N]`: cosine without each head; NaN until it is computed."""
    _waiting: dict[Head, Floats] = field(default_factory=dict, init=False)
    """Vectors `[D]` of one text by ablated head, until the other text's vector is computed."""

    def jobs(self) -> Iterator[Job]:
        """Yield a forward pass for each head and text, and the function that stores its output."""
        for head in np.ndindex(*self.similarities.shape):
            for task in self.tasks:
                yield replace(task, ablated=(head,)), partial(self._store, head)

    def _store(self, head: Head, output: Output) -> None:
        self.take(head, self.vector(output))

    def take(self, head: Head, vector: Floats) -> None:
        """Store the vector of one of the texts without a head; can be called in any thread."""
        other = self._waiting.setdefault(head, vector)
        if other is not vector:
            del self._waiting[head]
            self.similarities[head] = cosine(other, vector)


def head_occlusion_bytes(width: int, config: EncoderConfig) -> int:
    """Return the bytes of the vectors, of `width` features, of both texts without each head."""
    return 2 * 4 * width * config.num_hidden_layers * config.num_attention_heads


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


@dataclass(frozen=True)
class Work:
    """The work of a request."""

    tokens: int
    """Tokens of the whole request."""
    least: int
    """Tokens of the smallest useful part: the vectors, a tenth of the occlusion passes, and the
    decomposition of the first pair."""


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
    alone = bisect.bisect_right(range(1, work.tokens + 1), seconds, key=scheduler.seconds_alone)
    return max(work.least, math.ceil(ADMITTED_SHARE * alone))
