"""Streamed maps: in order, not far ahead of the reader, and dropped when the reader leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import weakref
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np
import pytest

from service.api.native.attention.maps import written
from service.api.native.attention.writers import Writer
from service.api.wire.media import Part
from service.engines.contract import MapsTask, Output, Task, TextTask
from service.engines.fake import FakeEngine
from service.errors import EngineFailed, Overloaded, ReplyTooLarge
from service.inference.attention.maps import (
    ArrayName,
    AttentionSelection,
    LayerMaps,
    Lengths,
    TextSummary,
)
from service.inference.attention.stream import AttentionStream
from service.inference.encoding import PreparedTexts
from service.inference.timings import Timings
from service.inference.tokenization.text import Text
from service.scheduler.call import ANYBODY
from service.scheduler.scheduler import Scheduler
from tests.service.harness import CONFIG, GatedEngine, batching, manifest_of, text, tokenized, until

pytestmark = pytest.mark.anyio


S = 8
ONE_LAYER = 4 * 2 * S * S
"""Bytes of all heads' maps of one layer of one text."""
ALL = AttentionSelection({"encoder": ((0, 1), (0, 1))})


class Log(Writer):
    """Writer whose parts are labels."""

    media_type = "text/plain"
    keeps_back = False

    def dump(self, array: Any) -> Part:
        return np.ascontiguousarray(array).tobytes()

    def start(self) -> list[Part]:
        return [b"start"]

    def layer(self, maps: LayerMaps) -> list[Part]:
        return [b"layer %d " % maps.text + bytes(maps.arrays.get("attention", b""))]

    def text(self, summary: TextSummary) -> list[Part]:
        return [b"text %d" % summary.text]

    def end(self) -> list[Part]:
        return [b"end"]


class Watched(FakeEngine):
    """Engine that records its results, and which of them are still in memory."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.seen = ""
        """Order of tasks: T for each text, m for each layer's maps."""
        self.hidden: list[weakref.ref[Any]] = []
        self.most_hidden_tokens = 0
        self.maps: list[weakref.ref[Any]] = []
        self.most_map_bytes = 0

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = super().run(tasks)
        self.seen += "".join("T" if isinstance(task, TextTask) else "m" for task in tasks)
        self.hidden += [
            weakref.ref(states) for output in outputs for states in output.map_states[:1]
        ]
        self.maps += [weakref.ref(output.maps) for output in outputs if output.maps is not None]
        found = [array for ref in self.hidden if (array := ref()) is not None]
        self.most_hidden_tokens = max(self.most_hidden_tokens, sum(map(len, found)))
        found = [array for ref in self.maps if (array := ref()) is not None]
        self.most_map_bytes = max(self.most_map_bytes, sum(array.nbytes for array in found))
        return outputs

    @property
    def maps_computed(self) -> int:
        return self.seen.count("m")

    @property
    def texts_computed(self) -> int:
        return self.seen.count("T")


def subjects(*lengths: int) -> list[Text]:
    return [tokenized(length, seed) for seed, length in enumerate(lengths)]


def of_texts(
    batcher: Scheduler, texts: Sequence[Text], asked: AttentionSelection, **more: Any
) -> AttentionStream:
    prepared = PreparedTexts([*texts], ANYBODY, batcher, Timings(0, 0.0, 0.0))
    return AttentionStream(prepared, manifest_of(CONFIG), asked, **more)


async def test_a_layer_whose_maps_are_too_large_is_refused_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Watched()
    monkeypatch.setattr("service.inference.attention.stream.LAYER_BYTES", ONE_LAYER)
    statistics = dataclasses.replace(ALL, include=frozenset({"stats"}))
    one_head = dataclasses.replace(statistics, maps={"encoder": ((0, 1), (1,))})
    with batching(engine) as (batcher, _):

        def ask(selection: AttentionSelection, *lengths: int) -> None:
            of_texts(batcher, subjects(*lengths), selection)

        ask(statistics, S, S)
        ask(one_head, S + 1)
        with pytest.raises(ReplyTooLarge, match=r"inputs\[1\] has 9 tokens: the maps of 2 heads"):
            ask(statistics, S, S + 1)
        with pytest.raises(ReplyTooLarge, match="of 2 heads of one layer take 648 bytes"):
            ask(dataclasses.replace(one_head, include=frozenset({"stats", "rollout"})), S + 1)
    assert engine.seen == ""


def streamed(
    batcher: Scheduler,
    of: Sequence[Text],
    asked: AttentionSelection = ALL,
    writer: Writer | None = None,
) -> AsyncGenerator[Part]:
    writer = writer or Log()
    return written(of_texts(batcher, of, asked, convert=writer.dump), writer)


def names(parts: Sequence[Part]) -> list[str]:
    return [" ".join(bytes(part)[:7].decode("latin-1").split(" ")[:2]) for part in parts]


async def at_rest(batcher: Scheduler) -> None:
    """Wait until the engine computes no more."""
    for _ in range(10):
        await asyncio.sleep(0)
    await until(lambda: batcher._idle[False] == batcher.engine.concurrency)


@pytest.fixture
def three_layers_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.inference.attention.stream.GROUP_BYTES", 3 * ONE_LAYER)


def wanted_maps(subject: Text, layer: int, heads: tuple[int, ...] = (0, 1)) -> bytes:
    engine = FakeEngine(CONFIG)
    ids, segments = subject.input_ids, subject.segment_ids
    (hidden,) = engine.expected(TextTask(ids, segments, map_layers=(layer,))).map_states
    maps = engine.expected(MapsTask(hidden, hidden, layer, heads)).maps
    assert maps is not None
    return maps.tobytes()


@pytest.mark.parametrize("group_bytes", [1, ONE_LAYER, 3 * ONE_LAYER, 2**23])
@pytest.mark.parametrize("chunk_tokens", [1, 10, 4096])
@pytest.mark.parametrize("layers", [(0, 1), (1, 0), (1,)])
async def test_texts_come_in_order_each_with_its_layers_in_the_order_asked(
    layers: tuple[int, ...], chunk_tokens: int, group_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.attention.stream.GROUP_BYTES", group_bytes)
    monkeypatch.setattr("service.inference.attention.stream.CHUNK_TOKENS", chunk_tokens)
    of = subjects(8, 3, 1, 8, 20, 5, 5)
    asked = AttentionSelection({"encoder": (layers, (1, 0))})
    with batching(FakeEngine(CONFIG, concurrency=2), max_batch_tokens=16) as (batcher, _):
        parts = [part async for part in streamed(batcher, of, asked)]
    wanted: list[bytes] = [b"start"]
    for index, subject in enumerate(of):
        own = b"layer %d " % index
        wanted += [own + wanted_maps(subject, layer, (1, 0)) for layer in layers]
        wanted.append(b"text %d" % index)
    assert parts == [*wanted, b"end"]


@pytest.mark.usefixtures("three_layers_at_a_time")
async def test_nothing_is_said_before_something_is_computed() -> None:
    engine = GatedEngine()
    with batching(engine) as (batcher, _):
        parts = streamed(batcher, subjects(S, S))
        first = asyncio.ensure_future(anext(parts))
        await until(lambda: len(engine.batches) == 1)
        engine.let_through(1)  # the texts
        await until(lambda: len(engine.batches) == 2)
        await asyncio.sleep(0.02)
        assert not first.done()
        engine.let_through(1)  # the first maps
        assert await first == b"start"
        engine.let_through()
        await parts.aclose()


@pytest.mark.usefixtures("three_layers_at_a_time")
async def test_a_slow_reader_stops_the_engine_after_two_groups() -> None:
    engine = Watched()
    with batching(engine) as (batcher, _):
        parts = streamed(batcher, subjects(*[S] * 9))  # 18 layers, six groups
        layers_read = 0
        ahead = []
        async for part in parts:
            await at_rest(batcher)
            layers_read += names([part])[0].startswith("layer")
            ahead.append(engine.maps_computed - layers_read)
        assert ahead[0] == 6  # one group is sent, the next one waits
        assert max(ahead) == 6
        assert engine.maps_computed == layers_read == 18


@pytest.mark.usefixtures("three_layers_at_a_time")
@pytest.mark.parametrize(("kept", "ahead"), [(False, 12), (True, 6)])
async def test_more_maps_are_computed_at_a_time_where_they_are_not_kept(
    kept: bool, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18 layers are computed in groups of six if only their statistics are kept."""
    monkeypatch.setattr("service.inference.attention.stream.COMPUTED_BYTES", 6 * ONE_LAYER)
    include: list[ArrayName] = ["weights", "stats"] if kept else ["stats"]
    asked = dataclasses.replace(ALL, include=frozenset(include))
    engine = Watched()
    with batching(engine) as (batcher, _):
        stream = of_texts(batcher, subjects(*[S] * 9), asked)
        results = stream.results()
        await anext(results)
        await at_rest(batcher)
        assert engine.maps_computed == ahead  # one group is taken, the next one waits
        await results.aclose()


@pytest.mark.usefixtures("three_layers_at_a_time")
async def test_what_was_sent_is_not_kept() -> None:
    class Views(Log):
        """Writer that sends views of the engine's memory, as the binary form does."""

        def dump(self, array: Any) -> Part:
            return array

        def layer(self, maps: LayerMaps) -> list[Part]:
            return [maps.arrays["attention"].data]

    engine = Watched()
    with batching(engine) as (batcher, _):
        parts = streamed(batcher, subjects(*[S] * 12), writer=Views())
        while True:
            part = await anext(parts, None)
            if part is None:
                break
            del part
            await at_rest(batcher)
    assert engine.maps_computed == 24
    assert engine.most_map_bytes <= 7 * ONE_LAYER


async def test_later_chunks_are_computed_after_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.inference.attention.stream.CHUNK_TOKENS", 20)
    engine = Watched()
    with batching(engine) as (batcher, _):
        parts = streamed(batcher, subjects(8, 8, 30, 8, 4))
        found = []
        async for part in parts:
            found += names([part])
            await at_rest(batcher)
            chunk = {"start": 2, "layer 0": 2, "text 0": 2, "layer 1": 2}
            if found[-1] in chunk:
                assert engine.texts_computed == chunk[found[-1]]
    assert engine.seen == "TTmmmm" + "Tmm" + "TTmmmm"
    assert engine.most_hidden_tokens <= 30 + 8  # one chunk, and no other beside it


@pytest.mark.usefixtures("three_layers_at_a_time")
@pytest.mark.parametrize("parts_read", [1, 2, 4, 7])
async def test_closing_early_withdraws_the_rest(parts_read: int) -> None:
    engine = Watched()
    with batching(engine) as (batcher, recorder):
        parts = streamed(batcher, subjects(*[S] * 9))
        for _ in range(parts_read):
            await anext(parts)
        await parts.aclose()
        computed = engine.maps_computed
        assert computed <= 9
        await at_rest(batcher)
        assert engine.maps_computed <= computed + 3  # what was begun
        assert batcher.lanes["attention"].queued_tokens == 0
        assert not recorder.failed
        assert len(await batcher.submit("attention", [text(5)])) == 1


@pytest.mark.usefixtures("three_layers_at_a_time")
async def test_closing_while_more_waits_in_the_queue_drops_it() -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=S) as (batcher, recorder):
        parts = streamed(batcher, subjects(*[S] * 9))
        first = asyncio.ensure_future(anext(parts))
        engine.let_through(9 + 3)
        await first
        await until(lambda: len(engine.batches) == 13)  # the first map of the second group
        assert batcher.lanes["attention"].queued_tokens == 2 * S
        await parts.aclose()
        assert batcher.lanes["attention"].queued_tokens == 0
        assert recorder.drops == []  # their texts were computed before
        engine.let_through()
    assert len(engine.batches) == 13


@pytest.mark.usefixtures("three_layers_at_a_time")
@pytest.mark.parametrize("batches", [0, 1, 2])
async def test_who_leaves_before_the_first_part_leaves_nothing_behind(batches: int) -> None:
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=S) as (batcher, _):
        parts = streamed(batcher, subjects(S, S))
        first = asyncio.ensure_future(anext(parts))
        for _ in range(batches):
            engine.let_through(1)
        await until(lambda: len(engine.batches) == batches + 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert batcher.lanes["attention"].queued_tokens == 0
        engine.let_through()
        with pytest.raises(StopAsyncIteration):
            await anext(parts)
    assert len(engine.batches) == batches + 1


class FailsLater(FakeEngine):
    """Engine that computes a number of tasks, and then fails until it is repaired."""

    def __init__(self, good: int) -> None:
        super().__init__(CONFIG)
        self.good = good

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.good -= len(tasks)
        if self.good < 0:
            raise RuntimeError("c4n4ry")
        return super().run(tasks)


@pytest.mark.usefixtures("three_layers_at_a_time")
@pytest.mark.parametrize(
    ("good", "parts_read"),
    [
        pytest.param(0, 0, id="the texts"),
        pytest.param(9, 0, id="the first maps"),
        pytest.param(9 + 3, 1 + 3 + 1, id="the second group"),
        pytest.param(9 + 9, 1 + 9 + 4, id="the fourth"),
    ],
)
async def test_a_failure_ends_the_stream(good: int, parts_read: int) -> None:
    engine = FailsLater(good)
    with batching(engine, max_batch_tokens=3 * S) as (batcher, recorder):
        parts = streamed(batcher, subjects(*[S] * 9))
        for _ in range(parts_read):
            await anext(parts)
        with pytest.raises(EngineFailed, match="raised RuntimeError"):
            await anext(parts)
        assert recorder.failed == ["attention"]
        assert batcher.lanes["attention"].queued_tokens == 0
        engine.good = 1000
        assert len([part async for part in streamed(batcher, subjects(S))]) == 1 + 2 + 1 + 1


async def test_only_the_first_chunk_has_to_be_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.inference.attention.stream.CHUNK_TOKENS", 20)
    engine = GatedEngine()
    with batching(engine, max_queue_tokens=60) as (batcher, _):
        parts = streamed(batcher, subjects(20, 20, 20))
        first = asyncio.ensure_future(anext(parts))
        await until(lambda: engine.batches)
        waiting = asyncio.create_task(batcher.submit("attention", [text(30)]))
        await until(lambda: batcher.lanes["attention"].queued_tokens == 30)
        refused = streamed(batcher, subjects(16))
        with pytest.raises(Overloaded):
            await anext(refused)
        engine.let_through()
        await first
        assert len([part async for part in parts]) == 3 * 3 + 1
        await waiting
        larger_than_the_queue = streamed(batcher, subjects(5, 40))
        assert len([part async for part in larger_than_the_queue]) == 1 + 2 * 3 + 1


@pytest.mark.parametrize("ablated", [(), ((0, 1),)])
async def test_its_times_are_those_of_all_its_steps(ablated: tuple[tuple[int, int], ...]) -> None:
    engine = FakeEngine(CONFIG, batch_seconds=0.02)
    asked = dataclasses.replace(ALL, ablated={"encoder": ablated})
    with batching(engine) as (batcher, _):
        stream = of_texts(batcher, subjects(S), asked)
        started = time.monotonic()
        assert len([result async for result in stream.results()]) == 3
        elapsed = time.monotonic() - started
    timings = stream.prepared.timings
    assert timings.inference_seconds >= 0.04
    assert timings.queue_seconds >= 0
    assert timings.queue_seconds + timings.inference_seconds <= elapsed


OF_TARGET = (2, 0), (1,)
THREE_KINDS = dataclasses.replace(
    ALL,
    maps={**ALL.maps, "decoder": OF_TARGET, "cross": OF_TARGET},
    include=ALL.include | {"logprobs"},
    targets=True,
)


def with_targets(*lengths: tuple[int, int]) -> list[Text]:
    """Return texts of S tokens with targets of T tokens."""
    return [
        dataclasses.replace(tokenized(source, seed), target=tokenized(target, 50 + seed))
        for seed, (source, target) in enumerate(lengths)
    ]


async def test_maps_of_three_kinds_come_from_one_pass_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks are of sources and targets together."""
    monkeypatch.setattr("service.inference.attention.stream.CHUNK_TOKENS", 20)
    engine = Watched()
    of = with_targets((8, 2), (4, 6), (2, 19))
    with batching(engine) as (batcher, _):
        stream = of_texts(batcher, of, THREE_KINDS)
        assert stream.hidden_bytes == 4 * 8 * max(20 * 4, 3 * 2 + 4 * 19)
        results = [result async for result in stream.results()]
    assert engine.seen == "TT" + "m" * 12 + "T" + "m" * 6
    for index, one in enumerate(of):
        source, target = Lengths.of(one)
        *maps, summary = results[7 * index : 7 * index + 7]
        found = [
            (name, array.shape)
            for each in maps
            if isinstance(each, LayerMaps)
            for name, array in each.arrays.items()
        ]
        assert found == [
            *[("attention", (2, source, source))] * 2,
            *[("decoder_attention", (1, target, target))] * 2,
            *[("cross_attention", (1, target, source))] * 2,
        ]
        assert isinstance(summary, TextSummary)
        assert (summary.text, [*summary.values]) == (index, ["target_logprobs"])
        assert np.shape(summary.values["target_logprobs"]) == (target,)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("decoder", r"targets\[1\] has 9 tokens: the maps of 1 heads of one layer take 324 bytes"),
        ("cross", r"inputs\[1\] has 8 and targets\[1\] 9 tokens: the maps of 1 heads"),
    ],
)
async def test_a_layer_of_each_kind_is_bounded(
    kind: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.attention.stream.LAYER_BYTES", 4 * S * S)
    selection = dataclasses.replace(ALL, maps={kind: ((0,), (1,))}, targets=True)
    with batching(Watched()) as (batcher, _):
        fits = with_targets((S, S), (1, S), (S, 1))
        of_texts(batcher, fits, selection)
        with pytest.raises(ReplyTooLarge, match=says):
            of_texts(batcher, with_targets((S, S), (8, 9)), selection)
