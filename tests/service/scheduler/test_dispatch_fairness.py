"""Division of busy time between the lanes, on a fake clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from service.engines.contract import MapsTask, Output, Task
from service.engines.fake import FakeEngine
from service.scheduler.lanes import LaneName
from service.scheduler.scheduler import Scheduler
from tests.service.harness import CONFIG, Recorder, batching, layer_maps, text, until
from tests.service.scheduler.clock import FakeClock

pytestmark = pytest.mark.anyio

BATCH_SECONDS: dict[LaneName, float] = {"encode": 0.010, "attention": 0.070}


class Clockwork(FakeEngine):
    """Engine whose batches take 70 ms of the fake clock with maps, and 10 ms without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(CONFIG)
        self.clock = FakeClock(monkeypatch)
        self.running = threading.Event()
        self.running.set()

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.running.wait()
        outputs = super().run(tasks)
        lane: LaneName = "attention" if isinstance(tasks[0], MapsTask) else "encode"
        self.clock.now += BATCH_SECONDS[lane]
        return outputs


def flood(batcher: Scheduler, lane: LaneName, batches: int) -> list[asyncio.Task[object]]:
    """Queue texts that make one batch each."""
    tasks: list[Task] = [
        layer_maps(8, seed) if lane == "attention" else text(8, seed, hidden_layers=(0,))
        for seed in range(batches)
    ]
    return [asyncio.create_task(batcher.submit(lane, [task])) for task in tasks]


async def answered(engine: Clockwork, batcher: Scheduler, *floods: tuple[LaneName, int]) -> None:
    """Queue all batches of some floods before the first is computed, and wait for all."""
    engine.running.clear()
    tasks = [task for lane, batches in floods for task in flood(batcher, lane, batches)]
    await asyncio.sleep(0)  # in which each task is queued
    engine.running.set()
    await asyncio.gather(*tasks)


def share(recorder: Recorder, seconds: float, since: int = 0) -> float:
    """Return the share of /encode in the busy time of the batches from `since` on."""
    busy = {"encode": 0.0, "attention": 0.0}
    for lane, _, taken in recorder.finished[since:]:
        if sum(busy.values()) >= seconds:
            break
        busy[lane] += taken
    assert sum(busy.values()) >= seconds, "too few batches to tell"
    return busy["encode"] / sum(busy.values())


async def test_a_flood_of_both_leaves_encode_three_quarters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Clockwork(monkeypatch)
    with batching(engine, max_batch_tokens=8) as (batcher, recorder):
        await answered(engine, batcher, ("attention", 40), ("encode", 400))
    assert share(recorder, seconds=4) == pytest.approx(0.75, abs=0.03)
    for moment in range(0, 200, 20):  # at any time, not only on the whole
        assert share(recorder, seconds=1, since=moment) == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize("lane", ["encode", "attention"])
async def test_a_lane_alone_gets_everything(
    lane: LaneName, monkeypatch: pytest.MonkeyPatch
) -> None:
    with batching(Clockwork(monkeypatch), max_batch_tokens=8) as (batcher, recorder):
        started = batcher.engine.clock.now  # type: ignore[attr-defined]
        await asyncio.gather(*flood(batcher, lane, 20))
        taken = batcher.engine.clock.now - started  # type: ignore[attr-defined]
    assert [name for name, _, _ in recorder.finished] == [lane] * 20
    assert taken == pytest.approx(20 * BATCH_SECONDS[lane])


@pytest.mark.parametrize("one_by_one", [True, False], ids=["one by one", "flood"])
@pytest.mark.parametrize(
    ("alone", "first"),
    [("encode", "attention"), ("encode", "encode"), ("attention", "encode")],
)
async def test_an_idle_lane_builds_up_no_credit(
    alone: LaneName, first: LaneName, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Clockwork(monkeypatch)
    with batching(engine, max_batch_tokens=8) as (batcher, recorder):
        if one_by_one:  # the queue is empty whenever the next text arrives
            for _ in range(200):
                await asyncio.gather(*flood(batcher, alone, 1))
        else:
            await asyncio.gather(*flood(batcher, alone, 200))
        then: LaneName = "encode" if first == "attention" else "attention"
        await answered(engine, batcher, (first, 100), (then, 100))
    assert share(recorder, seconds=1, since=200) == pytest.approx(0.75, abs=0.12)


async def test_a_rare_length_does_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Clockwork(monkeypatch)
    asked = {"hidden_layers": (0,)}
    with batching(engine, max_batch_tokens=64) as (batcher, recorder):
        stop = False

        async def keep_flooding(seed: int) -> None:
            while not stop:
                await batcher.submit("encode", [text(8, seed, **asked)])

        floods = [asyncio.create_task(keep_flooding(seed)) for seed in range(40)]
        await until(lambda: len(recorder.finished) > 5)
        before = len(recorder.finished)
        await batcher.submit("encode", [text(500, **asked)])
        stop = True
        await asyncio.gather(*floods)
    lengths = [lengths for _, lengths, _ in recorder.finished]
    # only earlier texts: 5 full batches, or up to 40 if the event loop lags
    assert lengths.index([500]) - before <= 40
