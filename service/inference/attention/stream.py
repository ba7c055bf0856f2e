"""Stream of attention results: a forward pass, then maps one layer at a time.

Only a small part of the result is in memory at a time.

Notation: S tokens of a text, T of its target, H hidden size, L layers of the encoder.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.signature import MapKind
from model.numerics.comparison import shift_right
from model.runtimes.contract import HiddenState
from service.engines.contract import (
    Ablated,
    Floats,
    MapsTask,
    Output,
    Pooling,
    Target,
    TargetOutput,
    TextTask,
)
from service.errors import ReplyTooLarge
from service.inference.attention.maps import (
    AttentionSelection,
    Convert,
    LayerMaps,
    LayerPass,
    Lengths,
    MapsReduction,
    TextSummary,
    layer_passes,
)
from service.inference.attention.statistics import rollout_step, shift
from service.inference.encoding import PreparedTexts
from service.inference.outputs.field import Array
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

GROUP_BYTES = 8 * 2**20
"""Maximum bytes of reduced maps in a group of jobs; a single layer of a text may exceed it."""
COMPUTED_BYTES = 32 * 2**20
"""Maximum bytes of maps that are computed at a time, before their reduction: two layers of 12 heads
and 512 tokens, one for each of two cores. A single layer of a text may exceed it."""
LAYER_BYTES = 512 * 2**20
"""Maximum bytes of the maps of a layer of a text, which are computed together."""
CHUNK_TOKENS = 1024
"""Maximum tokens of texts whose hidden states are in memory; a single text may exceed it."""
Item = TypeVar("Item")
Job = tuple[MapsTask, MapsReduction]
"""Task of maps, and the reduction of its output."""
StateLayers = Mapping[MapKind, tuple[int, ...]]
"""Kind of maps → layers whose states are needed, ascending: hidden states, `[S, H]` of the encoder
and `[T, H]` of the decoder, or query states `[T, H]` of cross-attention."""
States = Mapping[tuple[MapKind, int], HiddenState]
"""States of a text by the kind of maps and the layer."""


def attention_task(
    text: Text,
    layers: StateLayers,
    ablated: Mapping[MapKind, Ablated],
    pooling: Pooling | None = None,
    *,
    logprobs: bool = False,
) -> TextTask:
    """Return the forward pass of a text and its target, for the states of some layers."""
    of_decoder, target = (layers.get("decoder", ()), layers.get("cross", ())), None
    if text.target and (any(of_decoder) or logprobs):
        without = ablated.get("decoder", ()), ablated.get("cross", ())
        target = Target(text.target.input_ids, *of_decoder, logprobs, *without)
    return TextTask(
        text.input_ids,
        text.segment_ids,
        pooling=pooling,
        ablated=ablated.get("encoder", ()),
        target=target,
        pixels=text.pixels,
        map_layers=layers.get("encoder", ()),
    )


def state_layers(passes: Sequence[LayerPass], last: int) -> StateLayers:
    """Return the layers whose states passes need; the keys of cross-attention are state `last`."""
    layers: dict[MapKind, set[int]] = {"encoder": set(), "decoder": set(), "cross": set()}
    for layer_pass in passes:
        layers[layer_pass.kind].add(layer_pass.layer)
    if layers["cross"]:
        layers["encoder"].add(last)
    return {kind: tuple(sorted(own)) for kind, own in layers.items()}


def states_of(layers: StateLayers, output: Output) -> States:
    """Return the states of a text from its output."""
    target = output.target or TargetOutput()
    found: list[Sequence[HiddenState]] = [output.map_states, target.hidden, target.cross]
    return {
        (kind, layer): state
        for (kind, own), states in zip(layers.items(), found, strict=True)
        for layer, state in zip(own, states, strict=True)
    }


@dataclass
class AttentionStream:
    """Attention of a request, computed as it is consumed."""

    prepared: PreparedTexts
    """Texts of the request, with their scheduler, caller and timings so far."""
    manifest: Manifest
    selection: AttentionSelection
    ends: tuple[Collection[int], Collection[int]] = ((), ())
    """Ids of the special tokens that end a text, and a target."""
    convert: Convert = np.asarray
    finish: Callable[[Sequence[Floats]], Sequence[Floats]] | None = None
    """Function from pooled vectors to text vectors, for their cosines; called in a thread."""
    passes: list[LayerPass] = field(init=False)
    layers: StateLayers = field(init=False)

    def __post_init__(self) -> None:
        """Determine the passes over each text; raise `ReplyTooLarge` if a layer's are too large."""
        self.passes = layer_passes(self.selection, self.manifest.config)
        self.layers = state_layers(self.passes, self.manifest.config.num_hidden_layers)
        by_size = sorted(self.passes, key=lambda each: each.arrays)
        largest = {layer_pass.kind: layer_pass for layer_pass in by_size}
        for index, text in enumerate(self.prepared.texts):
            for layer_pass in largest.values():
                _check_layer(layer_pass, index, Lengths.of(text))

    def drop_deadline(self) -> None:
        """Compute the rest without a deadline, because its reply has begun."""
        caller = replace(self.prepared.caller, finish_by=math.inf)
        self.prepared = replace(self.prepared, caller=caller)

    @property
    def hidden_bytes(self) -> int:
        """Maximum bytes of hidden states in memory."""
        encoder, decoder, cross = map(len, self.layers.values())
        lengths = [*map(Lengths.of, self.prepared.texts)]
        rows = [encoder * own.source + (decoder + cross) * own.target for own in lengths]
        most = min(sum(rows), max(CHUNK_TOKENS * max(encoder, decoder + cross), *rows))
        return 4 * self.manifest.config.hidden_size * most

    async def results(self) -> AsyncGenerator[LayerMaps | TextSummary]:
        """Yield the maps of each pass over a text, then its summary, text by text."""
        lengths = [[sum(Lengths.of(text))] for text in self.prepared.texts]
        for chunk in runs(range(len(lengths)), lengths.__getitem__, [CHUNK_TOKENS]):
            states, summaries = await self._forward(chunk)
            jobs = [job for item in zip(chunk, states, strict=True) for job in self._jobs(*item)]
            async with contextlib.aclosing(self._in_order(jobs)) as results:
                for text, values in zip(chunk, summaries, strict=True):
                    layers, rollouts = defaultdict[str, list[Floats]](list), dict[str, Floats]()
                    for _ in self.passes:
                        maps = await anext(results)
                        for name, of_heads in maps.statistics.items():
                            layers[name].append(of_heads)
                        for name, step in maps.steps.items():
                            before = rollouts.get(name)
                            rollouts[name] = await asyncio.to_thread(rollout_step, before, step)
                        yield maps
                        del maps  # free the consumed maps while the next are computed
                    stacked = {name: np.stack(own) for name, own in layers.items()}
                    yield TextSummary(text, {**stacked, **rollouts, **values})
            del states, jobs  # free memory before the next chunk

    async def _forward(
        self, chunk: Sequence[int]
    ) -> tuple[list[States], Sequence[Mapping[str, Array | float]]]:
        """Return each text's states, and the fields of its summary from the forward passes."""
        selection, config, sentence = self.selection, self.manifest.config, self.manifest.sentence
        texts = [self.prepared.texts[index] for index in chunk]
        logprobs = selection.ablates or "logprobs" in selection.include

        def task(text: Text, layers: StateLayers, ablated: Mapping[MapKind, Ablated]) -> TextTask:
            pooling = None
            if selection.ablates:
                first = text.first_pooled(sentence)
                pooling = Pooling(config.num_hidden_layers, sentence.pooling, first)
            return attention_task(text, layers, ablated, pooling, logprobs=logprobs)

        tasks = [task(text, self.layers, selection.ablated) for text in texts]
        if selection.ablates:
            tasks += [task(text, {}, {}) for text in texts]
        outputs = await self.prepared.submit("attention", tasks, resumed=chunk[0] > 0)
        ablated, whole = outputs[: len(texts)], outputs[len(texts) :]
        summaries = [*map(self._of_target, ablated, whole or ablated)]
        if whole:  # 1 − cosine of each text's vectors with and without the ablation
            vectors: Sequence[Floats] = [requested(output.pooled) for output in outputs]
            if self.finish:
                vectors = await asyncio.to_thread(self.finish, vectors)
            shifts = map(shift, vectors[: len(texts)], vectors[len(texts) :])
            pairs = zip(shifts, summaries, strict=True)
            summaries = [{"pooled_shift": float(own), **values} for own, values in pairs]
        return [states_of(self.layers, output) for output in ablated], summaries

    def _of_target(self, output: Output, whole: Output) -> dict[str, Array | float]:
        """Return the log-probabilities, and the shift of their mean by the ablation, by field."""
        values: dict[str, Array | float] = {}
        target = output.target
        if target is None or target.logprobs is None:
            return values
        if self.selection.ablates and whole.target and whole.target.logprobs is not None:
            after, before = (
                each.mean(dtype=np.float64) for each in (target.logprobs, whole.target.logprobs)
            )
            values["target_logprob_shift"] = float(after - before)
        if "logprobs" in self.selection.include:
            values["target_logprobs"] = target.logprobs
        return values

    def _jobs(self, index: int, states: States) -> Iterator[Job]:
        text, last = self.prepared.texts[index], self.manifest.config.num_hidden_layers
        for layer_pass in self.passes:
            kind, layer, heads = layer_pass.kind, layer_pass.layer, layer_pass.heads
            queries = states[kind, layer]
            keys = states["encoder", last] if kind == "cross" else queries
            values, segment = layer_pass.values, text.segment
            task = MapsTask(queries, keys, layer, heads, kind, values=values, segment=segment)
            ends = self._ends(text, kind) if "stats" in layer_pass.include else ()
            view = text.picture
            yield task, MapsReduction(self.selection, layer_pass, index, ends, self.convert, view)

    def _ends(self, text: Text, kind: MapKind) -> list[int]:
        """Return the indices of the separators among the keys of a kind of maps."""
        read, ends, decoder = text.input_ids, self.ends[0], self.manifest.decoder
        if kind == "decoder" and text.target and decoder:  # whose input begins with a start token
            read, ends = shift_right(text.target.input_ids, decoder.start_token_id), self.ends[1]
        places: list[int] = np.flatnonzero(np.isin(read, [*ends])).tolist()
        return places

    async def _in_order(self, jobs: Sequence[Job]) -> AsyncGenerator[LayerMaps]:
        """Yield the result of each job, computing a group while the previous one is consumed."""
        groups = runs(jobs, _bytes, (COMPUTED_BYTES, GROUP_BYTES))

        def begin() -> asyncio.Task[list[LayerMaps]] | None:
            if not (group := next(groups, None)):
                return None
            tasks, reduce = [task for task, _ in group], [reduction for _, reduction in group]
            submitted = self.prepared.submit("attention", tasks, reduce, resumed=True)
            return asyncio.create_task(submitted)

        running = begin()
        try:
            while running:
                done = await running
                running = begin()
                while done:
                    yield done.pop(0)
        finally:
            if running:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def runs(
    items: Iterable[Item], sizes: Callable[[Item], Sequence[int]], most: Sequence[int]
) -> Iterator[list[Item]]:
    """Split items into runs, none of whose summed `sizes` exceeds `most`.

    A larger item is a run alone.
    """
    run: list[Item] = []
    totals: Sequence[int] = [0] * len(most)
    for item in items:
        own = sizes(item)
        totals = [total + size for total, size in zip(totals, own, strict=True)]
        if run and any(total > limit for total, limit in zip(totals, most, strict=True)):
            yield run
            run, totals = [], own
        run.append(item)
    if run:
        yield run


def _bytes(job: Job) -> tuple[int, int]:
    """Return the bytes of a job's maps before and after their reduction."""
    task, reduction = job
    queries, keys = len(task.queries), len(task.keys)
    computed = 4 * len(task.heads) * queries * keys * (2 if task.values else 1)
    return computed, reduction.left_bytes(queries, keys)


def _check_layer(layer_pass: LayerPass, index: int, lengths: Lengths) -> None:
    """Reject a text or a target whose maps of one layer take too much memory."""
    size = 4 * layer_pass.arrays * math.prod(lengths.shape(layer_pass.kind))
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
