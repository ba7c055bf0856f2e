"""Choice of the engine: the default at once, others on first use, never a substitute."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from service.errors import EngineNotInstalled, EngineUnavailable
from service.inference.engine_pool import EnginePool
from service.scheduler.admission import BatchLimits
from tests.service.harness import CONFIG, Recorder, text, until

pytestmark = pytest.mark.anyio


class Named(FakeEngine):
    def __init__(self, name: str) -> None:
        super().__init__(CONFIG)
        self.name = name
        self.dead = self.closed = False

    @property
    def alive(self) -> bool:
        return not self.dead

    def close(self) -> None:
        self.closed = True


class Slow:
    """Starter of an engine that waits until the test releases it."""

    def __init__(self, fails: bool = False) -> None:
        self.started: list[Named] = []
        self.calls = 0
        self.fails = fails
        self.gate = threading.Event()

    def __call__(self) -> Engine:
        self.calls += 1
        assert self.gate.wait(60)
        if self.fails:
            raise EngineUnavailable("it does not start", retry_after_seconds=5)
        self.started.append(Named("torch"))
        return self.started[-1]


@contextlib.contextmanager
def backends(torch: Callable[[], Engine] | None = None) -> Iterator[EnginePool]:
    others = {"torch": torch} if torch else {}
    found = EnginePool(Named("onnx"), others, BatchLimits(64, 1000), Recorder())
    try:
        yield found
    finally:
        if isinstance(torch, Slow):
            torch.gate.set()
        found.close()


@pytest.mark.parametrize("name", [None, "onnx"])
async def test_the_default_without_a_name_or_by_it(name: str | None) -> None:
    with backends() as found:
        assert (await found.get(name)) is found.default


async def test_what_is_not_there_is_not_replaced() -> None:
    with (
        backends() as found,
        pytest.raises(EngineNotInstalled, match="torch engine is not part of this service"),
    ):
        await found.get("torch")


async def test_another_starts_at_its_first_use_and_stays() -> None:
    slow = Slow()
    slow.gate.set()
    with backends(slow) as found:
        assert slow.calls == 0
        batcher = await found.get("torch")
        assert (await batcher.submit("encode", [text(5)]))[0].value.pooled is not None
        assert await found.get("torch") is batcher
        assert slow.calls == 1
    assert slow.started[0].closed


async def test_many_who_ask_at_once_start_one() -> None:
    slow = Slow()
    with backends(slow) as found:
        asking = [asyncio.create_task(found.get("torch")) for _ in range(10)]
        await until(lambda: slow.calls)
        slow.gate.set()
        assert len(set(await asyncio.gather(*asking))) == 1
        assert slow.calls == 1


async def test_nobody_else_waits_for_a_start() -> None:
    slow = Slow()
    with backends(slow) as found:
        asking = asyncio.create_task(found.get("torch"))
        await until(lambda: slow.calls)
        async with asyncio.timeout(60):
            assert await found.get("onnx") is found.default
            assert await found.get(None) is found.default
        slow.gate.set()
        await asking


async def test_who_leaves_does_not_stop_a_start() -> None:
    slow = Slow()
    with backends(slow) as found:
        leaving = asyncio.create_task(found.get("torch"))
        await until(lambda: slow.calls)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        staying = asyncio.create_task(found.get("torch"))
        slow.gate.set()
        assert (await staying).engine is slow.started[0]
        assert slow.calls == 1


async def test_one_that_died_is_started_again() -> None:
    slow = Slow()
    slow.gate.set()
    with backends(slow) as found:
        first = await found.get("torch")
        slow.started[0].dead = True
        second = await found.get("torch")
        assert second is not first
        assert second.engine is slow.started[1]
        assert len(await second.submit("encode", [text(5)])) == 1


async def test_a_start_that_fails_is_tried_again_at_the_next_use() -> None:
    slow = Slow(fails=True)
    slow.gate.set()
    with backends(slow) as found:
        for calls in (1, 2):
            with pytest.raises(EngineUnavailable, match="does not start"):
                await found.get("torch")
            assert slow.calls == calls
        slow.fails = False
        assert (await found.get("torch")).engine.alive


async def test_a_default_that_died_stays_the_default() -> None:
    slow = Slow()
    with backends(slow) as found:
        engine = found.default.engine
        assert isinstance(engine, Named)
        engine.dead = True
        assert await found.get("onnx") is found.default
        with pytest.raises(EngineUnavailable, match="onnx engine is down"):
            await found.default.submit("encode", [text(5)])
