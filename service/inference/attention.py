"""The attention of some texts, piece by piece: a forward pass, then maps a layer at a time.

However long the reply, little of it is ever in memory at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.engines.contract import Floats, MapsTask, Output, Pooling, TextTask
from service.inference.maps import Ending, Kept, MapsAsked, Part, Visit, Writer, reduce_maps
from service.inference.statistics import rollout_step, shift
from service.inference.tokenizer import TokenizedText
from service.scheduler.batching import Batcher
from service.scheduler.lanes import Done, Reduce

GROUP_BYTES = 8 * 2**20
"""Maps computed, and then waiting to be sent, at a time; a layer of a text may alone have more."""
CHUNK_TOKENS = 4096
"""Of texts whose hidden states are kept at a time; a text may alone have more."""
Job = tuple[MapsTask, Reduce]
"""Maps to compute, and what is taken from them."""


@dataclass(frozen=True)
class Subject:
    """A text, and what the service knows of it."""

    text: TokenizedText
    separators: tuple[int, ...]
    """Where its separator tokens stand."""
    pooling: Pooling

    def task(
        self, layers: tuple[int, ...], ablated: tuple[tuple[int, int], ...], *, pooled: bool
    ) -> TextTask:
        """What is to be computed of it."""
        ids, segments = self.text.input_ids, self.text.segment_ids
        return TextTask(ids, segments, layers, self.pooling if pooled else None, ablated)


@dataclass
class Timings:
    """Seconds spent so far."""

    queue: float = 0.0
    inference: float = 0.0

    def add(self, done: Sequence[Done]) -> None:
        """Tasks that went side by side."""
        self.queue += max(item.queue_seconds for item in done)
        self.inference += max(item.inference_seconds for item in done)


@dataclass
class MapsStream:
    """One request's way through an engine."""

    batcher: Batcher
    asked: MapsAsked
    visits: Sequence[Visit]
    writer: Writer
    finish_by: float = math.inf
    """`time.monotonic()` of the deadline of whatever is computed next."""
    timings: Timings = field(default_factory=Timings)

    async def parts(self, subjects: Sequence[Subject]) -> AsyncGenerator[Part]:
        """The reply's parts; none before something is computed.

        Raises:
            ServiceError: the request was not admitted, or the engine failed.

        """
        parts = self.writer.start()
        for chunk in _chunks(subjects):
            texts = [subjects[index] for index in chunk]
            hidden, shifts = await self._forward(texts, first=chunk.start == 0)
            jobs = [job for item in zip(texts, hidden, strict=True) for job in self._jobs(*item)]
            async with contextlib.aclosing(self._in_order(jobs)) as results:
                for index, pooled_shift in zip(chunk, shifts, strict=True):
                    gathered = _Gathered()
                    for visit in self.visits:
                        kept = await anext(results)
                        await gathered.add(kept)
                        if visit.asked:
                            parts += self.writer.layer(index, kept)
                        del kept  # what is sent is not kept while more is computed
                        while parts:
                            yield parts.pop(0)
                    ending = gathered.ending(pooled_shift)
                    if ending.rollout is None:
                        parts += self.writer.text(index, ending)
                    else:  # of 512 tokens it takes milliseconds to write
                        parts += await asyncio.to_thread(self.writer.text, index, ending)
            del hidden, jobs  # before the next chunk's are computed
        for part in parts + self.writer.end():
            yield part

    async def _forward(
        self, texts: Sequence[Subject], *, first: bool
    ) -> tuple[list[dict[int, Floats]], list[float | None]]:
        """Each text's hidden states by layer, and its pooled shift if heads are ablated."""
        layers = tuple(sorted({visit.layer for visit in self.visits}))
        ablated = self.asked.ablated
        tasks = [text.task(layers, ablated, pooled=bool(ablated)) for text in texts]
        if ablated:
            tasks += [text.task((), (), pooled=True) for text in texts]
        if first:
            done = await self.batcher.submit("attention", tasks, self.finish_by)
        else:
            done = await self.batcher.resume("attention", tasks, finish_by=self.finish_by)
        self.timings.add(done)
        outputs: list[Output] = [item.output for item in done]
        found, whole = outputs[: len(texts)], outputs[len(texts) :]
        hidden = [dict(zip(layers, output.hidden, strict=True)) for output in found]
        if not ablated:
            return hidden, [None] * len(texts)
        return hidden, [
            float(shift(np.asarray(one.pooled), np.asarray(other.pooled)))
            for one, other in zip(found, whole, strict=True)
        ]

    def _jobs(self, subject: Subject, hidden: dict[int, Floats]) -> Iterator[Job]:
        for visit in self.visits:
            states = hidden[visit.layer]
            task = MapsTask(states, states, visit.layer, visit.heads)
            taking = (self.asked, visit, subject.separators, self.writer)
            yield task, functools.partial(reduce_maps, *taking)

    async def _in_order(self, jobs: Sequence[Job]) -> AsyncGenerator[Kept]:
        """What each job leaves; one group is computed while the one before it is sent."""
        groups = deque(_groups(jobs))

        def begin() -> asyncio.Task[list[Done]] | None:
            if not groups:
                return None
            tasks, reduce = zip(*groups.popleft(), strict=True)
            return asyncio.create_task(
                self.batcher.resume("attention", tasks, reduce, self.finish_by)
            )

        running = begin()
        try:
            while running:
                done = await running
                self.timings.add(done)
                running = begin()
                while done:
                    yield done.pop(0).output
        finally:
            if running:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


class _Gathered:
    """What the layers of a text leave for its end."""

    def __init__(self) -> None:
        self._statistics: dict[str, list[Floats]] = {}
        self._rollout: Floats | None = None

    async def add(self, kept: Kept) -> None:
        for name, values in (kept.statistics or {}).items():
            self._statistics.setdefault(name, []).append(values)
        if kept.mean is not None:
            self._rollout = await asyncio.to_thread(rollout_step, self._rollout, kept.mean[None])

    def ending(self, pooled_shift: float | None) -> Ending:
        stacked = {name: np.stack(values) for name, values in self._statistics.items()}
        return Ending(stacked, self._rollout, pooled_shift)


def hidden_bytes(lengths: Sequence[int], layers: int, hidden_size: int) -> int:
    """What the hidden states of a chunk of texts of such lengths take at most."""
    tokens = min(sum(lengths), max(CHUNK_TOKENS, *lengths))
    return 4 * tokens * layers * hidden_size


def _groups(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Neighbours that have at most `GROUP_BYTES` of maps together."""
    group: list[Job] = []
    size = 0
    for job in jobs:
        task, _ = job
        own = 4 * len(task.heads) * len(task.queries) * len(task.keys)
        if group and size + own > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(job)
        size += own
    if group:
        yield group


def _chunks(subjects: Sequence[Subject]) -> Iterator[range]:
    """Neighbours that have at most `CHUNK_TOKENS` together."""
    start = tokens = 0
    for index, subject in enumerate(subjects):
        own = len(subject.text.input_ids)
        if index > start and tokens + own > CHUNK_TOKENS:
            yield range(start, index)
            start, tokens = index, 0
        tokens += own
    yield range(start, len(subjects))
