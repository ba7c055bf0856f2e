"""The attention of some texts, piece by piece: a forward pass, then maps a layer at a time.

However large the result, little of it is ever in memory at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model.config import EncoderConfig
from service.engines.contract import Floats, MapsTask, Output, Pooling, TextTask
from service.errors import ReplyTooLarge
from service.inference.maps import (
    AttentionSelection,
    Convert,
    LayerMaps,
    LayerPass,
    MapsReduction,
    TextSummary,
    layer_passes,
)
from service.inference.statistics import rollout_step, shift
from service.inference.timings import Timings
from service.inference.tokenizer import TokenizedText
from service.scheduler.scheduler import Scheduler
from service.scheduler.submission import ANYBODY, Caller, TaskResult

GROUP_BYTES = 8 * 2**20
"""Bytes of maps that are computed, and then waiting to be taken, at a time; a layer of one text may
alone have more."""
LAYER_BYTES = 512 * 2**20
"""Most bytes of the maps of one layer of one text, which are computed together."""
CHUNK_TOKENS = 1024
"""Tokens of texts whose hidden states are kept at a time; one text may alone have more."""
Job = tuple[MapsTask, MapsReduction]
"""Maps to compute, and what is taken from them."""


def _unchanged(array: Any) -> Any:
    return array


@dataclass(frozen=True)
class AttentionText:
    """A text, and what the service knows of it."""

    text: TokenizedText
    separators: tuple[int, ...]
    """Positions of its separator tokens."""
    pooling: Pooling

    def task(
        self, layers: tuple[int, ...], ablated: tuple[tuple[int, int], ...], *, pooled: bool
    ) -> TextTask:
        """Its forward pass."""
        ids, segments = self.text.input_ids, self.text.segment_ids
        return TextTask(ids, segments, layers, self.pooling if pooled else None, ablated)


@dataclass
class AttentionStream:
    """One request's attention, computed as it is read."""

    scheduler: Scheduler
    config: EncoderConfig
    selection: AttentionSelection
    texts: Sequence[AttentionText]
    timings: Timings
    """Seconds so far."""
    caller: Caller = ANYBODY
    """Who asks, with the deadline of whatever is computed next."""
    convert: Convert = _unchanged
    finish: Callable[[Sequence[Floats]], Sequence[Floats]] | None = None
    """Pooled vectors → the vectors of texts, whose cosines are taken; called in a thread."""
    passes: list[LayerPass] = field(init=False)

    def __post_init__(self) -> None:
        """Find the passes over each text.

        Raises:
            ReplyTooLarge: the maps of a layer, whether they are sent or not, are too large.

        """
        self.passes = layer_passes(self.selection, self.config)
        heads = max((len(one.heads) for one in self.passes), default=0)
        for index, text in enumerate(self.texts):
            tokens = len(text.text.input_ids)
            if (size := 4 * heads * tokens**2) > LAYER_BYTES:
                raise ReplyTooLarge(
                    f"inputs[{index}] has {tokens} tokens: the maps of {heads} heads of one layer "
                    f"take {size} bytes, the limit is {LAYER_BYTES}; ask for fewer heads without "
                    "rollout, or for a shorter text"
                )

    @property
    def hidden_bytes(self) -> int:
        """Most bytes of hidden states that are kept at a time."""
        lengths = [len(text.text.input_ids) for text in self.texts]
        tokens = min(sum(lengths), max(CHUNK_TOKENS, *lengths))
        layers = len({one.layer for one in self.passes})
        return 4 * tokens * layers * self.config.hidden_size

    async def results(self) -> AsyncGenerator[LayerMaps | TextSummary]:
        """The maps of each pass over a text, in order, then the text's summary; text after text.

        Raises:
            ServiceError: the request was not admitted, or the engine failed.

        """
        for chunk in _chunks(self.texts):
            texts = [self.texts[index] for index in chunk]
            hidden, shifts = await self._forward(texts, first=chunk.start == 0)
            jobs = [job for item in zip(chunk, hidden, strict=True) for job in self._jobs(*item)]
            async with contextlib.aclosing(self._in_order(jobs)) as results:
                for index, pooled_shift in zip(chunk, shifts, strict=True):
                    gathered = LayerResults()
                    for _ in self.passes:
                        maps = await anext(results)
                        await gathered.add(maps)
                        yield maps
                        del maps  # what is taken is not kept while more is computed
                    yield gathered.summary(index, pooled_shift)
            del hidden, jobs  # before the next chunk's are computed

    async def _forward(
        self, texts: Sequence[AttentionText], *, first: bool
    ) -> tuple[list[dict[int, Floats]], list[float | None]]:
        """Each text's hidden states by layer, and its pooled shift if heads are ablated."""
        layers = tuple(sorted({one.layer for one in self.passes}))
        ablated = self.selection.ablated
        tasks = [text.task(layers, ablated, pooled=bool(ablated)) for text in texts]
        if ablated:
            tasks += [text.task((), (), pooled=True) for text in texts]
        if first:
            done = await self.scheduler.submit("attention", tasks, self.caller)
        else:
            done = await self.scheduler.resume("attention", tasks, caller=self.caller)
        self.timings.add(done)
        outputs: list[Output] = [item.output for item in done]
        found = outputs[: len(texts)]
        hidden = [dict(zip(layers, output.hidden, strict=True)) for output in found]
        if not ablated:
            return hidden, [None] * len(texts)
        vectors: Sequence[Floats] = [np.asarray(output.pooled) for output in outputs]
        if self.finish:
            vectors = await asyncio.to_thread(self.finish, vectors)
        pairs = zip(vectors[: len(texts)], vectors[len(texts) :], strict=True)
        return hidden, [float(shift(one, other)) for one, other in pairs]

    def _jobs(self, index: int, hidden: dict[int, Floats]) -> Iterator[Job]:
        separators = self.texts[index].separators
        for one in self.passes:
            states = hidden[one.layer]
            task = MapsTask(states, states, one.layer, one.heads)
            yield task, MapsReduction(self.selection, one, index, separators, self.convert)

    async def _in_order(self, jobs: Sequence[Job]) -> AsyncGenerator[LayerMaps]:
        """What each job leaves; one group is computed while the one before it is taken."""
        groups = deque(_groups(jobs))

        def begin() -> asyncio.Task[list[TaskResult]] | None:
            if not groups:
                return None
            tasks, reduce = zip(*groups.popleft(), strict=True)
            return asyncio.create_task(
                self.scheduler.resume("attention", tasks, reduce, self.caller)
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


class LayerResults:
    """What the layers of one text leave for its summary."""

    def __init__(self) -> None:
        self._statistics: dict[str, list[Floats]] = {}
        self._rollout: Floats | None = None

    async def add(self, maps: LayerMaps) -> None:
        """Count a layer in."""
        for name, values in (maps.statistics or {}).items():
            self._statistics.setdefault(name, []).append(values)
        if maps.mean is not None:
            self._rollout = await asyncio.to_thread(rollout_step, self._rollout, maps.mean[None])

    def summary(self, text: int, pooled_shift: float | None) -> TextSummary:
        """Of all layers of the text of that number."""
        stacked = {name: np.stack(values) for name, values in self._statistics.items()}
        return TextSummary(text, stacked, self._rollout, pooled_shift)


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


def _chunks(texts: Sequence[AttentionText]) -> Iterator[range]:
    """Neighbours that have at most `CHUNK_TOKENS` together."""
    start = tokens = 0
    for index, text in enumerate(texts):
        own = len(text.text.input_ids)
        if index > start and tokens + own > CHUNK_TOKENS:
            yield range(start, index)
            start, tokens = index, 0
        tokens += own
    yield range(start, len(texts))
