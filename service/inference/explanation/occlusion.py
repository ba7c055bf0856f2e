"""Occlusion: the similarity of two texts without a token, which is neither attended to nor pooled.

What transformers computes with `attention_mask` 0 at that token, and sentence-transformers pools of
it; the positions of the others stay. Each token is a text of its own to the engine.

Notation: S tokens of one text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import TokenizedText
from service.scheduler.scheduler import Scheduler
from service.scheduler.submission import Caller, TaskResult

SLICE_TOKENS = 4096
"""Tokens of texts that are queued at once; one text may alone have more."""
SLICES = 2
"""Slices that are queued side by side, so that no worker is idle where one ends."""
Finish = Callable[[Floats], Floats]
"""A pooled vector → the vector of its text."""
Job = tuple[TextTask, Callable[[Output], None]]
"""A forward pass, and what takes its output."""


@dataclass(frozen=True)
class Occlusion:
    """One text, each of whose tokens is occluded once."""

    text: TokenizedText
    pooling: Pooling
    finish: Finish
    other: Floats
    """The vector of the text that it is compared with."""
    without: NDArray[np.float64]
    """`[S]`, where the similarities without each token come; 0 where no token is left to pool."""

    def jobs(self) -> Iterator[Job]:
        """A forward pass for each token, and what becomes of its output."""
        ids, segments = self.text.input_ids, self.text.segment_ids
        layer, mode, first = self.pooling.layer, self.pooling.mode, self.pooling.first_token
        for token in range(len(ids)):
            counts = token >= first
            if counts and len(ids) - first == 1:
                continue
            pooling = Pooling(layer, mode, first, token if counts else None)
            task = TextTask(ids, segments, pooling=pooling, unseen=(token,))
            yield task, _Placement(self, token)


@dataclass(frozen=True, slots=True)
class _Placement:
    """The function that takes the similarity from a text's output."""

    occlusion: Occlusion
    token: int

    def __call__(self, output: Output) -> None:
        """In the thread that computed it."""
        assert output.pooled is not None  # noqa: S101 - the scheduler has checked every output
        vector = self.occlusion.finish(output.pooled)
        self.occlusion.without[self.token] = cosine(vector, self.occlusion.other)


def cosine(one: Floats, other: Floats) -> float:
    """Of two vectors; 0 where one is 0."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def occlusion_tokens(tokens: int) -> int:
    """Tokens that are encoded to occlude each token of a text of so many."""
    return tokens * tokens


async def occlude(
    scheduler: Scheduler, caller: Caller, timings: Timings, jobs: Iterable[Job]
) -> None:
    """Run the forward passes of occlusions, some after others.

    Args:
        scheduler: that admitted the request.
        caller: who asks.
        timings: of the request, which what is computed adds to.
        jobs: of all occlusions.

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
    """Neighbours that have at most `SLICE_TOKENS` together."""
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
