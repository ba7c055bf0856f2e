"""Stream of attention results: a forward pass, then maps one layer at a time.

Only a small part of the result is in memory at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, MapsTask, Output
from service.errors import ReplyTooLarge
from service.inference.attention.maps import (
    Convert,
    LayerMaps,
    LayerResults,
    MapsReduction,
    TextSummary,
    unchanged,
)
from service.inference.attention.selection import (
    AttentionSelection,
    LayerPass,
    Lengths,
    layer_passes,
)
from service.inference.attention.statistics import shift
from service.inference.attention.text import AttentionText, StateLayers, States
from service.inference.timings import Timings
from service.scheduler.call import ANYBODY, Call
from service.scheduler.queue import Slot
from service.scheduler.scheduler import Scheduler

GROUP_BYTES = 8 * 2**20
"""Maximum bytes of reduced maps in a group of jobs; a single layer of a text may exceed it."""
COMPUTED_BYTES = 32 * 2**20
"""Maximum bytes of maps that are computed at a time, before their reduction: two layers of 12 heads
and 512 tokens, one for each of two cores. A single layer of a text may exceed it."""
LAYER_BYTES = 512 * 2**20
"""Maximum bytes of the maps of a layer of a text, which are computed together."""
CHUNK_TOKENS = 1024
"""Maximum tokens of texts whose hidden states are in memory; a single text may exceed it."""
Job = tuple[MapsTask, MapsReduction]
"""Task of maps, and the reduction of its output."""


@dataclass
class AttentionStream:
    """Attention of a request, computed as it is consumed."""

    scheduler: Scheduler
    config: EncoderConfig
    selection: AttentionSelection
    texts: Sequence[AttentionText]
    timings: Timings
    """Timings so far."""
    caller: Call = ANYBODY
    """Client, and the deadline of the request."""
    convert: Convert = unchanged
    finish: Callable[[Sequence[Floats]], Sequence[Floats]] | None = None
    """Function from pooled vectors to text vectors, for their cosines; called in a thread."""
    passes: list[LayerPass] = field(init=False)
    layers: StateLayers = field(init=False)
    """Layers whose states the passes need."""

    def __post_init__(self) -> None:
        """Determine the passes over each text, and check the texts' sizes.

        Raises:
            ReplyTooLarge: maps that are computed together are too large, requested or not.

        """
        self.passes = layer_passes(self.selection, self.config)
        self.layers = StateLayers.of(self.passes, self.config.num_hidden_layers)
        self.check_sizes()

    def check_sizes(self) -> None:
        """Raise if the maps of a layer of a text are too large, requested or not."""
        largest: dict[MapKind, LayerPass] = {}
        for layer_pass in self.passes:
            known = largest.get(layer_pass.kind, layer_pass)
            largest[layer_pass.kind] = max(known, layer_pass, key=_arrays)
        for index, text in enumerate(self.texts):
            for layer_pass in largest.values():
                _check_layer(layer_pass, index, text.lengths)

    def drop_deadline(self) -> None:
        """Compute the rest without a deadline, because its reply has begun."""
        self.caller = dataclasses.replace(self.caller, finish_by=math.inf)

    @property
    def hidden_bytes(self) -> int:
        """Maximum bytes of hidden states in memory."""
        rows = [self.layers.rows(text) for text in self.texts]
        most = min(sum(rows), max(CHUNK_TOKENS * self.layers.most, *rows))
        return 4 * self.config.hidden_size * most

    async def results(self) -> AsyncGenerator[LayerMaps | TextSummary]:
        """Yield the maps of each pass over a text, then the text's summary, for each text in order.

        Raises:
            ServiceError: the request is not admitted, or the engine fails.

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
                        del maps  # free the consumed maps while the next are computed
                    yield gathered.complete(summary)
            del states, jobs  # free memory before the next chunk

    async def _forward(self, chunk: range) -> tuple[list[States], list[TextSummary]]:
        """Return each text's states, and its summary from the forward passes alone."""
        texts = [self.texts[index] for index in chunk]
        tasks = [text.task(self.layers, self.selection) for text in texts]
        if self.selection.ablates:
            tasks += [text.whole_task() for text in texts]
        done = await self.scheduler.submit("attention", tasks, self.caller, resumed=chunk.start > 0)
        self.timings.add(done)
        outputs = [result.value for result in done]
        ablated, whole = outputs[: len(texts)], outputs[len(texts) :]
        states = [self.layers.states(output) for output in ablated]
        shifts: Sequence[dict[str, float]] = [{}] * len(texts)
        if whole:
            shifts = await self._pooled_shifts(ablated, whole)
        return states, [
            TextSummary(index, {**shift, **self._of_target(output, other)})
            for index, output, other, shift in zip(
                chunk, ablated, whole or ablated, shifts, strict=True
            )
        ]

    async def _pooled_shifts(
        self, ablated: Sequence[Output], whole: Sequence[Output]
    ) -> list[dict[str, float]]:
        """Return 1 − cosine of each text's vectors with and without the ablation, by field."""
        vectors: Sequence[Floats] = [np.asarray(output.pooled) for output in (*ablated, *whole)]
        if self.finish:
            vectors = await asyncio.to_thread(self.finish, vectors)
        pairs = zip(vectors[: len(ablated)], vectors[len(ablated) :], strict=True)
        return [{"pooled_shift": float(shift(*pair))} for pair in pairs]

    def _of_target(self, output: Output, whole: Output) -> dict[str, Floats | float]:
        """Return the log-probabilities, and the shift of their mean by the ablation, by field."""
        values: dict[str, Floats | float] = {}
        target = output.target
        if target is None or target.logprobs is None:
            return values
        if self.selection.ablates and whole.target and whole.target.logprobs is not None:
            before = whole.target.logprobs.mean(dtype=np.float64)
            shifted = target.logprobs.mean(dtype=np.float64) - before
            values["target_logprob_shift"] = float(shifted)
        if "logprobs" in self.selection.include:
            values["target_logprobs"] = target.logprobs
        return values

    def _jobs(self, index: int, states: States) -> Iterator[Job]:
        for layer_pass in self.passes:
            task = MapsTask(
                *states.queries_and_keys(layer_pass),
                layer_pass.layer,
                layer_pass.heads,
                layer_pass.kind,
                values=layer_pass.values,
                segment=self.texts[index].text.segment,
            )
            yield task, self.reduction(index, layer_pass)

    def reduction(self, index: int, layer_pass: LayerPass) -> MapsReduction:
        """Return the reduction of a pass's maps of the text with an index."""
        text = self.texts[index]
        separators, view = text.separators_of(layer_pass.kind), text.text.picture
        return MapsReduction(self.selection, layer_pass, index, separators, self.convert, view)

    async def _in_order(self, jobs: Sequence[Job]) -> AsyncGenerator[LayerMaps]:
        """Yield the result of each job, computing a group while the previous one is consumed."""
        groups = deque(_groups(jobs))

        def begin() -> asyncio.Task[list[Slot[LayerMaps]]] | None:
            if not groups:
                return None
            group = groups.popleft()
            tasks, reduce = [task for task, _ in group], [reduction for _, reduction in group]
            return asyncio.create_task(
                self.scheduler.submit("attention", tasks, self.caller, reduce, resumed=True)
            )

        running = begin()
        try:
            while running:
                done = await running
                self.timings.add(done)
                running = begin()
                while done:
                    yield done.pop(0).value
        finally:
            if running:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def _arrays(layer_pass: LayerPass) -> int:
    """Return the number of arrays of a map's size that a pass computes."""
    return len(layer_pass.heads) * (2 if "norms" in layer_pass.include else 1)


def _check_layer(layer_pass: LayerPass, index: int, lengths: Lengths) -> None:
    """Reject a text or a target whose maps of one layer take too much memory."""
    size = 4 * _arrays(layer_pass) * math.prod(lengths.shape(layer_pass.kind))
    if size <= LAYER_BYTES:
        return
    arrays = "maps and norms" if "norms" in layer_pass.include else "maps"
    source, target = f"inputs[{index}] has {lengths.source}", f"targets[{index}]"
    described = {
        "encoder": source,
        "decoder": f"{target} has {lengths.target}",
        "cross": f"{source} and {target} {lengths.target}",
    }
    raise ReplyTooLarge(
        f"{described[layer_pass.kind]} tokens: the {arrays} "
        f"of {len(layer_pass.heads)} heads of one layer take {size} bytes, the limit is "
        f"{LAYER_BYTES}; ask for fewer heads without rollout, or for a shorter text"
    )


def _groups(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Group consecutive jobs by `COMPUTED_BYTES` before, and `GROUP_BYTES` after the reduction."""
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
    """Group consecutive texts with at most `CHUNK_TOKENS` tokens together."""
    start = tokens = 0
    for index, text in enumerate(texts):
        own = sum(text.lengths)
        if index > start and tokens + own > CHUNK_TOKENS:
            yield range(start, index)
            start, tokens = index, 0
        tokens += own
    yield range(start, len(texts))
