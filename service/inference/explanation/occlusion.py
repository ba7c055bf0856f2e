"""Occlusion: the similarity of two texts without a span, which is neither attended to nor pooled.

A span equals `attention_mask` 0 at all its tokens in transformers and in the pooling of
sentence-transformers; the positions of the other tokens stay. To the engine each span is a text of
its own.

Notation: S tokens of one text, W spans of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.explanation.spans import Span
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import TokenizedText
from service.scheduler.scheduler import Scheduler
from service.scheduler.submission import Caller, TaskResult

SLICE_TOKENS = 4096
"""Tokens of texts that are queued at once; one text may alone have more."""
SLICES = 2
"""Slices that are queued side by side, so that no worker is idle where one ends."""
Finish = Callable[[Floats], Floats]
"""A function from a pooled vector to the vector of its text."""
Job = tuple[TextTask, Callable[[Output], None]]
"""A forward pass, and the function that takes its output."""


@dataclass(frozen=True)
class Occlusion:
    """One text, some of whose spans are occluded, each alone."""

    text: TokenizedText
    spans: Sequence[Span]
    order: Sequence[int]
    """Indices of the spans that are occluded, in the order in which they are computed."""
    pooling: Pooling
    finish: Finish
    other: Floats
    """The vector of the text that it is compared with."""
    without: NDArray[np.float64] = field(init=False)
    """`[W]`: the similarity without each span; NaN where it is not computed."""

    def __post_init__(self) -> None:
        """Start without a similarity."""
        object.__setattr__(self, "without", np.full(len(self.spans), np.nan))

    def jobs(self) -> Iterator[Job]:
        """Yield a forward pass for each span, and the function that takes its output.

        A span without which no token is left to pool needs none: the similarity without it is 0.
        """
        ids, segments = self.text.input_ids, self.text.segment_ids
        layer, mode, first = self.pooling.layer, self.pooling.mode, self.pooling.first_token
        for number in self.order:
            tokens = self.spans[number].tokens
            left_out = tuple(token for token in tokens if token >= first)
            if len(left_out) == len(ids) - first:
                self.without[number] = 0.0
                continue
            pooling = Pooling(layer, mode, first, left_out)
            task = TextTask(ids, segments, pooling=pooling, unseen=tokens)
            yield task, _Placement(self, number)


@dataclass(frozen=True, slots=True)
class _Placement:
    """The function that takes the similarity from a text's output."""

    occlusion: Occlusion
    number: int

    def __call__(self, output: Output) -> None:
        """Keep the similarity; called in the thread that computed the output."""
        assert output.pooled is not None  # noqa: S101 - the scheduler has checked every output
        vector = self.occlusion.finish(output.pooled)
        self.occlusion.without[self.number] = cosine(vector, self.occlusion.other)


def cosine(one: Floats, other: Floats) -> float:
    """Return the cosine of two vectors; 0 where one is 0."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def in_turn(jobs: Iterable[Iterable[Job]]) -> Iterator[Job]:
    """Yield the first job of each list, then the second of each, and so on."""
    rounds = itertools.zip_longest(*jobs)
    return (job for each in rounds for job in each if job is not None)


async def occlude(
    scheduler: Scheduler, caller: Caller, timings: Timings, jobs: Iterable[Job]
) -> None:
    """Run the forward passes of occlusions, one slice after another.

    Args:
        scheduler: the scheduler that admitted the request.
        caller: who asks.
        timings: the timings of the request, to which the computed passes are added.
        jobs: the jobs of all occlusions.

    Raises:
        EngineTimeout: the deadline came.
        ServiceError: the engine failed.

    """
    running: deque[asyncio.Task[list[TaskResult]]] = deque()
    try:
        for part in _slices(jobs):
            if len(running) == SLICES:
                timings.add(await running.popleft())
            tasks, placements = zip(*part, strict=True)
            running.append(
                asyncio.create_task(scheduler.resume("attention", tasks, placements, caller))
            )
        while running:
            timings.add(await running.popleft())
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _slices(jobs: Iterable[Job]) -> Iterator[Sequence[Job]]:
    """Yield neighbouring jobs that have at most `SLICE_TOKENS` together."""
    part: list[Job] = []
    tokens = 0
    for job in jobs:
        if part and tokens + job[0].tokens > SLICE_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(job)
        tokens += job[0].tokens
    if part:
        yield part
