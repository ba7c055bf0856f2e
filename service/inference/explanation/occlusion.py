"""Occlusion: similarity of two texts while a span of one is neither attended to nor pooled.

Occluding a span equals `attention_mask` 0 at all its tokens in transformers and in the pooling of
sentence-transformers; the positions of the other tokens stay. To the engine, each occlusion of a
text is a text.

Heads are ablated one at a time, as in Michel et al. 2019 (arXiv 1905.10650): the head's output is
multiplied by zero before the output projection.

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

from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.explanation.spans import AnySpan
from service.inference.timings import Timings
from service.inference.tokenization.text import Text
from service.scheduler.call import Call
from service.scheduler.outputs import requested
from service.scheduler.queue import Slot
from service.scheduler.scheduler import Scheduler

SLICE_TOKENS = 4096
"""Maximum tokens of a slice of texts that is queued at once; a longer text is a slice alone."""
SLICES = 2
"""Number of slices in the queue at a time, so that no worker is idle at the end of a slice."""
Finish = Callable[[Floats], Floats]
"""Function from a pooled vector to the vector of its text."""
Job = tuple[TextTask, Callable[[Output], None]]
"""Forward pass, and the callable that stores its output."""


@dataclass(frozen=True)
class Occlusion:
    """A text whose spans are occluded one at a time."""

    text: Text
    spans: Sequence[AnySpan]
    order: Sequence[int]
    """Indices of the spans that are occluded, in the order in which they are computed."""
    pooling: Pooling
    finish: Finish
    other: Floats
    """Vector of the other text of the pair."""
    without: NDArray[np.float64] = field(init=False)
    """`[W]`: similarity without each span; NaN where it is not computed."""

    def __post_init__(self) -> None:
        """Fill `without` with NaN."""
        object.__setattr__(self, "without", np.full(len(self.spans), np.nan))

    def jobs(self) -> Iterator[Job]:
        """Yield a forward pass for each span, and the callable that stores its output.

        A span of all pooled tokens needs no forward pass: the similarity without it is 0.
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
            task = TextTask(ids, segments, pooling=pooling, unseen=tokens, pixels=self.text.pixels)
            yield task, _Placement(self, number)


@dataclass(frozen=True, slots=True)
class _Placement:
    """Callable that stores the similarity of a text's output."""

    occlusion: Occlusion
    number: int

    def __call__(self, output: Output) -> None:
        """Store the similarity; called in the thread that computed the output."""
        vector = self.occlusion.finish(requested(output.pooled))
        self.occlusion.without[self.number] = cosine(vector, self.occlusion.other)


def cosine(one: Floats, other: Floats) -> float:
    """Return the cosine of two vectors; 0 if either is the zero vector."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def in_turn(jobs: Iterable[Iterable[Job]]) -> Iterator[Job]:
    """Yield the first job of each list, then the second of each, and so on."""
    rounds = itertools.zip_longest(*jobs)
    return (job for each in rounds for job in each if job is not None)


async def occlude(
    scheduler: Scheduler, caller: Call, timings: Timings, jobs: Iterable[Job]
) -> None:
    """Run the forward passes of occlusions, in slices.

    Args:
        scheduler: the scheduler that admitted the request.
        caller: the client of the request, and its deadline.
        timings: the timings of the request, to which the computed passes are added.
        jobs: the jobs of all occlusions.

    Raises:
        EngineTimeout: the deadline has passed.
        ServiceError: the engine failed.

    """
    running: deque[asyncio.Task[list[Slot[None]]]] = deque()
    try:
        for part in _slices(jobs):
            if len(running) == SLICES:
                timings.add(await running.popleft())
            tasks, placements = [task for task, _ in part], [placement for _, placement in part]
            passes = scheduler.submit("attention", tasks, caller, placements, resumed=True)
            running.append(asyncio.create_task(passes))
        while running:
            timings.add(await running.popleft())
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _slices(jobs: Iterable[Job]) -> Iterator[Sequence[Job]]:
    """Split jobs into runs of at most `SLICE_TOKENS` tokens; a longer job is a run alone."""
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


Head = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True)
class HeadOcclusion:
    """Two texts, in which each head is ablated once, layer by layer."""

    texts: tuple[Text, Text]
    poolings: tuple[Pooling, Pooling]
    finish: Finish
    similarities: Floats
    """`[L, N]`: cosine without each head; NaN until it is computed."""
    _waiting: dict[Head, Floats] = field(default_factory=dict, init=False)
    """Vectors `[D]` of one text by ablated head, until the other text's vector is computed."""

    def jobs(self) -> Iterator[Job]:
        """Yield a forward pass for each head and text, and the callable that stores its output."""
        for layer, head in np.ndindex(*self.similarities.shape):
            for text, pooling in zip(self.texts, self.poolings, strict=True):
                ids, segments = text.input_ids, text.segment_ids
                ablated = ((layer, head),)
                task = TextTask(ids, segments, pooling=pooling, ablated=ablated, pixels=text.pixels)
                yield task, _HeadPlacement(self, (layer, head))

    def take(self, head: Head, vector: Floats) -> None:
        """Store the vector of one of the texts without a head; can be called in any thread."""
        other = self._waiting.setdefault(head, vector)
        if other is not vector:
            del self._waiting[head]
            self.similarities[head] = cosine(other, vector)


@dataclass(frozen=True, slots=True)
class _HeadPlacement:
    """Callable that stores the vector of a text's output."""

    occlusion: HeadOcclusion
    head: Head

    def __call__(self, output: Output) -> None:
        """Store the vector; called in the thread that computed the output."""
        self.occlusion.take(self.head, self.occlusion.finish(requested(output.pooled)))


def head_occlusion_bytes(width: int, config: EncoderConfig) -> int:
    """Return the bytes of the vectors, of `width` features, of both texts without each head."""
    return 2 * 4 * width * config.num_hidden_layers * config.num_attention_heads
