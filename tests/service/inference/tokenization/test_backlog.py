"""Requests that wait for the tokenizer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from service.errors import DeadlinePassed, EngineUnavailable, Overloaded
from service.inference.tokenization import backlog
from service.inference.tokenization.backlog import LARGE_CHARACTERS, SLICE_CHARACTERS, Backlog
from service.scheduler.call import Call
from tests.service.harness import until

pytestmark = pytest.mark.anyio


class Gated(Backlog):
    """Backlog whose slices take a second, run when they are let, and note the names of inputs."""

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)
        self.pace = 1.0 / SLICE_CHARACTERS
        self.order = ""
        self.gate = threading.Semaphore(0)

    def ask(self, name: str, slices: int, **caller: Any) -> asyncio.Task[list[str]]:
        """Send a request of so many slices, whose inputs are its name."""
        sizes = [SLICE_CHARACTERS] * slices
        return asyncio.create_task(self.run(Call(**caller), [name] * slices, sizes, self._read))

    def _read(self, inputs: Sequence[str], first: int) -> list[str]:
        self.order += inputs[0]
        assert self.gate.acquire(timeout=60)
        return [f"{text}{first + number}" for number, text in enumerate(inputs)]


@pytest.fixture
async def one() -> AsyncIterator[Gated]:
    found = Gated()
    yield found
    found.gate.release(100)
    found.close()


class Stopped:
    """A clock that stands still, so that a slice takes no time."""

    @staticmethod
    def monotonic() -> float:
        return 100.0


async def test_a_request_is_finished_before_the_next_large_one_begins(one: Gated) -> None:
    large = [one.ask(name, 9) for name in "AB"]
    await until(lambda: one.order == "A")
    small = one.ask("s", 1)
    other = one.ask("o", 2, client="other")
    await asyncio.sleep(0)
    one.gate.release(30)
    assert await small == ["s0"]
    assert await other == ["o0", "o1"]
    await asyncio.gather(*large)
    assert one.order == "A" + "oo" + "s" + "A" * 8 + "B" * 9


async def test_clients_share_the_threads_however_many_requests_they_have(one: Gated) -> None:
    gate = one.ask("g", 1, client="gate")
    await until(lambda: one.order == "g")
    hog = [one.ask("h", 2, client="hog") for _ in range(8)]
    await asyncio.sleep(0)
    quiet = [one.ask("q", 2) for _ in range(4)]
    await asyncio.sleep(0)
    one.gate.release(40)
    await asyncio.gather(gate, *hog, *quiet)
    assert one.order == "g" + "hhqq" * 4 + "hh" * 4


async def test_small_requests_that_keep_coming_do_not_hold_up_a_large_one(one: Gated) -> None:
    large = one.ask("A", 5)
    small = []
    for count in range(20):
        await until(lambda count=count: len(one.order) == count + 1)
        small.append(one.ask("s", 1))
        await asyncio.sleep(0)
        one.gate.release()
    await large
    one.gate.release(20)
    await asyncio.gather(*small)


async def test_a_request_that_leaves_is_forgotten(one: Gated) -> None:
    running = one.ask("A", 1)
    leaves = one.ask("L", 4)
    stays = one.ask("B", 2)
    await until(lambda: one.order == "A")
    assert one.seconds("", 9 * SLICE_CHARACTERS) == pytest.approx(4 + 2 + 9)
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    assert one.seconds("", 9 * SLICE_CHARACTERS) == pytest.approx(2 + 9)
    one.gate.release(9)
    await asyncio.gather(running, stays)
    assert one.order == "ABB"


async def test_the_slices_of_a_request_are_put_together_in_order() -> None:
    one = Gated(threads=2)
    running = one.ask("A", 7)
    await until(lambda: len(one.order) == 2)  # both threads work for it
    one.gate.release(7)
    assert await running == [f"A{number}" for number in range(7)]
    one.close()


async def test_what_cannot_be_tokenised_in_time_is_refused_before_any_of_it_is(
    one: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "time", Stopped)
    running = one.ask("A", 6)
    await until(lambda: one.order == "A")
    assert one.seconds("", 2 * SLICE_CHARACTERS) == pytest.approx(2)
    assert one.seconds("", 9 * SLICE_CHARACTERS) == pytest.approx(5 + 9)
    with pytest.raises(Overloaded, match=r"would take about 11\.0 s, and 10\.0 s") as refused:
        await one.ask("B", 6, finish_by=110.0)
    assert 11 <= (refused.value.retry_after_seconds or 0) <= 22
    fits = one.ask("C", 6, finish_by=111.5)
    await asyncio.sleep(0)
    one.gate.release(12)
    await asyncio.gather(running, fits)
    assert one.order == "A" * 6 + "C" * 6


async def test_the_deadline_is_checked_before_each_slice(
    one: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "time", Stopped)
    late = one.ask("A", 3, finish_by=105.0)
    await until(lambda: one.order == "A")
    monkeypatch.setattr(Stopped, "monotonic", staticmethod(lambda: 105.0))
    one.gate.release(3)
    with pytest.raises(DeadlinePassed, match="before all inputs were read"):
        await late
    assert one.order == "A"


async def test_it_waits_for_a_bounded_number_of_requests(
    one: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MAX_REQUESTS", 2)
    waiting = [one.ask("A", 2) for _ in range(2)]
    await until(lambda: one.order)
    with pytest.raises(Overloaded, match="2 requests wait for the tokenizer"):
        await one.ask("B", 1)
    one.gate.release(5)
    await asyncio.gather(*waiting)
    assert await one.ask("C", 1) == ["C0"]


async def test_the_time_of_a_character_follows_what_slices_took(one: Gated) -> None:
    for _ in range(100):
        one.account(1000, 0.5)
    assert one.seconds("", 2000) == pytest.approx(1, rel=0.05)
    one.account(1000, 1000.0)  # the machine slept
    assert one.seconds("", 2000) < 1.5


async def test_an_error_of_a_slice_ends_its_request_alone(one: Gated) -> None:
    def broken(inputs: Sequence[str], first: int) -> list[str]:
        raise ValueError(f"input {first}")

    failing = asyncio.create_task(one.run(Call(), ["x"] * 3, [SLICE_CHARACTERS] * 3, broken))
    one.gate.release()
    right = one.ask("A", 1)
    with pytest.raises(ValueError, match="input 0"):
        await failing
    assert await right == ["A0"]


async def test_closing_refuses_what_waits(one: Gated) -> None:
    waiting = [one.ask("A", 3) for _ in range(2)]
    await until(lambda: one.order)
    one.gate.release(1)
    one.close()
    for task in waiting:
        with pytest.raises(EngineUnavailable, match="stopping"):
            await task
    assert one.order == "A"
    with pytest.raises(EngineUnavailable):
        await one.ask("B", 1)


async def test_memory_goes_back_after_large_slices_alone(
    one: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = list[int]()
    monkeypatch.setattr(backlog, "release_memory", lambda: released.append(1))
    for size, count in ((SLICE_CHARACTERS, 0), (LARGE_CHARACTERS + 1, 1)):
        await one.run(Call(), ["a"], [size], lambda inputs, _: [*inputs])
        assert len(released) == count
