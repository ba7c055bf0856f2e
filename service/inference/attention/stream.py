"""The attention of some texts, piece by piece: a forward pass, then maps a layer at a time.

However large the result, little of it is ever in memory at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, MapsTask, Output
from service.errors import ReplyTooLarge
from service.inference.attention.layer_passes import LayerPass, layer_passes
from service.inference.attention.maps import (
    Convert,
    LayerMaps,
    LayerResults,
    MapsReduction,
    TextSummary,
)
from service.inference.attention.selection import AttentionSelection, Lengths
from service.inference.attention.statistics import shift
from service.inference.attention.text import AttentionText, StateLayers, States
from service.inference.timings import Timings
from service.scheduler.scheduler import Scheduler
from service.scheduler.submission import ANYBODY, Caller, TaskResult

GROUP_BYTES = 8 * 2**20
"""Bytes that are left of maps, and then waiting to be taken, at a time; a layer of one text may
alone leave more."""
COMPUTED_BYTES = 32 * 2**20
"""Bytes of maps that are computed at a time, of which less may be left: two layers of 12 heads and
512 tokens, one for each of two cores. A layer of one text may alone have more."""
LAYER_BYTES = 512 * 2**20
"""Most bytes of the maps of one layer of one text, which are computed together."""
CHUNK_TOKENS = 1024
"""Tokens of texts whose hidden states are kept at a time; one text may alone have more."""
Job = tuple[MapsTask, MapsReduction]
"""Maps to compute, and what is taken from them."""


def _unchanged(array: Any) -> Any:
    return array


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
    convert_norms: Convert | None = None
    """As `convert` when None."""
    finish: Callable[[Sequence[Floats]], Sequence[Floats]] | None = None
    """Pooled vectors → the vectors of texts, whose cosines are taken; called in a thread."""
    passes: list[LayerPass] = field(init=False)
    layers: StateLayers = field(init=False)
    """Whose states the passes need."""

    def __post_init__(self) -> None:
        """Find the passes over each text.

        Raises:
            ReplyTooLarge: the maps of a layer, whether they are sent or not, are too large.

        """
        self.passes = layer_passes(self.selection, self.config)
        self.layers = StateLayers.of(self.passes, self.config.num_hidden_layers)
        largest: dict[MapKind, LayerPass] = {}
        for one in self.passes:
            largest[one.kind] = max(largest.get(one.kind, one), one, key=_arrays)
        for index, text in enumerate(self.texts):
            for one in largest.values():
                _check_layer(one, index, text.lengths)

    @property
    def hidden_bytes(self) -> int:
        """Most bytes of hidden states that are kept at a time."""
        rows = [self.layers.rows(text) for text in self.texts]
        most = min(sum(rows), max(CHUNK_TOKENS * self.layers.most, *rows))
        return 4 * self.config.hidden_size * most

    async def results(self) -> AsyncGenerator[LayerMaps | TextSummary]:
        """The maps of each pass over a text, in order, then the text's summary; text after text.

        Raises:
            ServiceError: the request was not admitted, or the engine failed.

        """
        for chunk in _chunks(self.texts):
            states, summaries = await self._forward(chunk)
            jobs = [job for item in zip(chunk, states, strict=True) for job in self._jobs(*item)]
            async with contextlib.aclosing(self._in_order(jobs)) as results:
                for summary in summaries:
                    gathered = LayerResults()
                    for _ in self.passes:
                        maps = await anext(results)
                        await gathered.add(maps)
                        yield maps
                        del maps  # what is taken is not kept while more is computed
                    yield gathered.complete(summary)
            del states, jobs  # before the next chunk's are computed

    async def _forward(self, chunk: range) -> tuple[list[States], list[TextSummary]]:
        """Each text's states, and what its forward passes alone leave for its summary."""
        texts = [self.texts[index] for index in chunk]
        tasks = [text.task(self.layers, self.selection) for text in texts]
        if self.selection.ablates:
            tasks += [text.whole_task() for text in texts]
        if chunk.start == 0:
            done = await self.scheduler.submit("attention", tasks, self.caller)
        else:
            done = await self.scheduler.resume("attention", tasks, caller=self.caller)
        self.timings.add(done)
        outputs: list[Output] = [item.output for item in done]
        found, whole = outputs[: len(texts)], outputs[len(texts) :]
        states = [self.layers.states(output) for output in found]
        shifts: Sequence[float | None] = [None] * len(texts)
        if whole:
            shifts = await self._pooled_shifts(found, whole)
        return states, [
            TextSummary(index, {}, None, shift, *self._of_target(output, other))
            for index, output, other, shift in zip(
                chunk, found, whole or found, shifts, strict=True
            )
        ]

    async def _pooled_shifts(self, found: Sequence[Output], whole: Sequence[Output]) -> list[float]:
        """1 − cosine of the vectors of each text from two forward passes."""
        vectors: Sequence[Floats] = [np.asarray(output.pooled) for output in (*found, *whole)]
        if self.finish:
            vectors = await asyncio.to_thread(self.finish, vectors)
        pairs = zip(vectors[: len(found)], vectors[len(found) :], strict=True)
        return [float(shift(one, other)) for one, other in pairs]

    def _of_target(self, output: Output, whole: Output) -> tuple[float | None, Floats | None]:
        """Of two forward passes the mean log-probability's shift, and the first's own."""
        asked, target = self.selection.target, output.target
        if asked is None or target is None or target.logprobs is None:
            return None, None
        shifted = None
        if self.selection.ablates and whole.target and whole.target.logprobs is not None:
            shifted = float(
                target.logprobs.mean(dtype=np.float64)
                - whole.target.logprobs.mean(dtype=np.float64)
            )
        return shifted, target.logprobs if asked.logprobs else None

    def _jobs(self, index: int, states: States) -> Iterator[Job]:
        for one in self.passes:
            both = states.queries_and_keys(one)
            task = MapsTask(*both, one.layer, one.heads, one.kind, values=one.values)
            yield task, self.reduction(index, one)

    def reduction(self, index: int, one: LayerPass) -> MapsReduction:
        """What is taken from the maps of a pass over the text of that number."""
        separators = self.texts[index].separators_of(one.kind)
        convert = self.convert, self.convert_norms
        return MapsReduction(self.selection, one, index, separators, *convert)

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


def _arrays(one: LayerPass) -> int:
    """Arrays of a map's size that a pass leaves."""
    return len(one.heads) * (2 if one.norms else 1)


def _check_layer(one: LayerPass, index: int, lengths: Lengths) -> None:
    """Refuse a text, or a target, whose maps of one layer take too much memory."""
    size = 4 * _arrays(one) * math.prod(lengths.shape(one.kind))
    if size <= LAYER_BYTES:
        return
    source, target = f"inputs[{index}] has {lengths.source}", f"targets[{index}]"
    described = {
        "encoder": source,
        "decoder": f"{target} has {lengths.target}",
        "cross": f"{source} and {target} {lengths.target}",
    }
    raise ReplyTooLarge(
        f"{described[one.kind]} tokens: the maps {'and norms ' if one.norms else ''}of "
        f"{len(one.heads)} heads of one layer take {size} bytes, the limit is {LAYER_BYTES}; ask "
        "for fewer heads without rollout, or for a shorter text"
    )


def _groups(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Neighbours that have at most `COMPUTED_BYTES` of maps together, and leave `GROUP_BYTES`."""
    group: list[Job] = []
    size = left = 0
    for task, reduction in jobs:
        queries, keys = len(task.queries), len(task.keys)
        own = 4 * len(task.heads) * queries * keys * (2 if task.values else 1)
        own_left = reduction.left_bytes(queries, keys)
        if group and (size + own > COMPUTED_BYTES or left + own_left > GROUP_BYTES):
            yield group
            group, size, left = [], 0, 0
        group.append((task, reduction))
        size, left = size + own, left + own_left
    if group:
        yield group


def _chunks(texts: Sequence[AttentionText]) -> Iterator[range]:
    """Neighbours that have at most `CHUNK_TOKENS` together."""
    start = tokens = 0
    for index, text in enumerate(texts):
        own = sum(text.lengths)
        if index > start and tokens + own > CHUNK_TOKENS:
            yield range(start, index)
            start, tokens = index, 0
        tokens += own
    yield range(start, len(texts))
