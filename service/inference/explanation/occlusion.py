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
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, Output, TextTask
from service.errors import Unprocessable
from service.inference.attention.stream import runs
from service.inference.encoding import PreparedTexts
from service.scheduler.call import PendingWork
from service.scheduler.scheduler import Scheduler

SLICE_TOKENS = 4096
"""Maximum tokens of a slice of texts that is queued at once; a longer text is a slice alone."""
SLICES = 2
"""Number of slices in the queue at a time, so that no worker is idle at the end of a slice."""
Part = tuple[int, ...]
"""Indices of a part's tokens in a text; or layer and index of a head."""
Job = tuple[TextTask, Callable[[Output], None]]
"""Forward pass, and the function that stores its output in the thread that computed it."""


@dataclass
class Occlusion:
    """Parts that are left out one at a time: tokens of a text, or heads in both texts of a pair."""

    parts: Sequence[Part]
    order: Sequence[int]
    """Indices of the parts that are left out, in the order in which they are computed."""
    tasks: Callable[[Part], Sequence[TextTask]]
    """Function from a part to one or two forward passes without it; none if nothing is left."""
    score: Callable[[Part, Sequence[Output]], float]
    """Function from a part, and the outputs without it in any order, to the score."""
    empty_score: float = 0.0
    """Score of a text of which nothing is left."""
    scores: NDArray[np.float64] = field(init=False)
    """Score without each part; NaN where it is not computed."""
    _waiting: dict[int, Output] = field(default_factory=dict, init=False)
    """Output of the first of two forward passes, by the index of the part."""

    def __post_init__(self) -> None:
        """Fill `scores` with NaN."""
        self.scores = np.full(len(self.parts), np.nan)

    @property
    def computed(self) -> int:
        """Number of computed scores of the parts in `order`."""
        return int(np.count_nonzero(~np.isnan(self.scores)))

    def jobs(self) -> Iterator[Job]:
        """Yield the forward passes without each part, and the functions that store its score."""
        for number in self.order:
            tasks = self.tasks(self.parts[number])
            if not tasks:
                self.scores[number] = self.empty_score
            for task in tasks:
                yield task, partial(self._store, self.scores, number, len(tasks))

    def settle(self) -> None:
        """Keep the scores computed so far, whatever running batches still compute."""
        self.scores = self.scores.copy()

    def _store(self, scores: NDArray[np.float64], number: int, passes: int, output: Output) -> None:
        outputs = [output]
        if passes > 1:
            if self._waiting.setdefault(number, output) is output:
                return
            outputs.append(self._waiting.pop(number))
        scores[number] = self.score(self.parts[number], outputs)


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


def head_occlusion(
    tasks: Sequence[TextTask], vector: Callable[[Output], Floats], config: EncoderConfig
) -> Occlusion:
    """Return the cosine of two texts while a head is ablated in both, layer by layer, `[L · N]`.

    The tasks are the forward passes of both texts with all heads; `vector` maps an output to the
    vector of its text.
    """
    heads = [*np.ndindex(config.num_hidden_layers, config.num_attention_heads)]
    return Occlusion(
        heads,
        range(len(heads)),
        lambda head: [replace(task, ablated=((head[0], head[1]),)) for task in tasks],
        lambda _, outputs: cosine(*map(vector, outputs)),
    )


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


@contextmanager
def promised(
    works: Sequence[tuple[PreparedTexts, Work]],
    began: float,
    reply_bytes: int,
    advice: Callable[[float], str] | None,
) -> Iterator[tuple[list[PreparedTexts], float]]:
    """Reserve works that are computed one after another, each in its share of a request's time.

    Yield the texts with their reserved work, and when the reply has to be written, by
    `time.monotonic()`. Raise `Unprocessable` if the smallest useful parts take an idle service
    longer; `advice` returns how to reduce them to some seconds. Without it, all work is needed.
    """
    finish_by = works[0][0].caller.finish_by
    writing = writing_seconds(finish_by - began, reply_bytes)
    seconds = finish_by - began - writing
    alone = [prepared.scheduler.seconds_alone(work.least) for prepared, work in works]
    if advice and (total := sum(alone)) > seconds:
        raise Unprocessable(
            f"the smallest useful part of this explanation takes about {total:.1f} s on an idle "
            f"service, and there are {seconds:.1f} s to compute it (--request-timeout-seconds, or "
            f"less by the header x-request-timeout-ms): {advice(seconds)}"
        )
    reserved, promises = list[PreparedTexts](), list[PendingWork]()
    for (prepared, work), own in zip(works, alone, strict=True):
        share = own / total if advice and total else 1.0
        needed = needed_tokens(prepared.scheduler, work, share * seconds) if advice else None
        promises.append(PendingWork(work.tokens, needed, writing_seconds=writing))
        caller = replace(prepared.caller, pending=promises[-1])
        reserved.append(replace(prepared, caller=caller))
    try:
        yield reserved, finish_by - writing
    finally:
        for promise in promises:
            promise.end()


def needed_tokens(scheduler: Scheduler, work: Work, seconds: float) -> int:
    """Return the tokens that must fit before the deadline beside other requests.

    A request is refused if less than half of its answer would fit. If even an idle service would
    truncate the answer, half of the idle service's work is enough: the request is never refused
    for good.
    """
    alone = bisect.bisect_right(range(1, work.tokens + 1), seconds, key=scheduler.seconds_alone)
    return max(work.least, math.ceil(ADMITTED_SHARE * alone))
