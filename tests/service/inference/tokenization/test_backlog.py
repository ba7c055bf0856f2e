"""Requests that wait for the tokenizer: which is next, and which is refused at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from service.errors import EngineUnavailable, Overloaded
from service.inference.tokenization import backlog
from service.inference.tokenization.backlog import (
    LARGE_CHARACTERS,
    SLICE_CHARACTERS,
    Backlog,
    TokenizerWork,
)
from service.scheduler.submission import Caller
from tests.service.harness import until

pytestmark = pytest.mark.anyio


class Tokenizer:
    """Work that runs a slice at a time, when it is let, and notes what it did."""

    def __init__(self) -> None:
        self.order = ""
        self.gate = threading.Semaphore(0)

    def work(self, inputs: Sequence[str], first: int) -> list[str]:
        self.order += inputs[0]
        assert self.gate.acquire(timeout=60)
        return [f"{text}{first + number}" for number, text in enumerate(inputs)]

    def asked(self, name: str, slices: int, **caller: Any) -> TokenizerWork[str, str]:
        """A request of so many slices, whose inputs are its name."""
        inputs = [name] * slices
        return TokenizerWork(Caller(**caller), inputs, [SLICE_CHARACTERS] * slices, self.work)


class Stopped:
    """A clock that stands still, so that a slice takes no time."""

    @staticmethod
    def monotonic() -> float:
        return 100.0


def measured(threads: int = 1) -> Backlog:
    """A backlog whose slices take a second."""
    one = Backlog(threads)
    one.expect("texts", SLICE_CHARACTERS, 1.0)
    return one


async def test_a_request_is_finished_before_the_next_large_one_begins() -> None:
    one, tokenizer = measured(), Tokenizer()
    large = [asyncio.create_task(one.run(tokenizer.asked(name, 3))) for name in "AB"]
    await until(lambda: tokenizer.order == "A")
    small = asyncio.create_task(one.run(tokenizer.asked("s", 1)))
    other = asyncio.create_task(one.run(tokenizer.asked("o", 2, client="other")))
    await asyncio.sleep(0)
    tokenizer.gate.release(9)
    assert await small == ["s0"]
    assert [await task for task in large] == [["A0", "A1", "A2"], ["B0", "B1", "B2"]]
    assert await other == ["o0", "o1"]
    order = tokenizer.order
    assert order.replace("o", "") == "AsAABBB"
    assert "o" in order[:3], "another client has its turn at once"
    one.close()


async def test_the_slices_of_a_request_are_put_together_in_order() -> None:
    one, tokenizer = measured(threads=2), Tokenizer()
    running = asyncio.create_task(one.run(tokenizer.asked("A", 7)))
    await until(lambda: len(tokenizer.order) == 2)  # both threads work for it
    tokenizer.gate.release(7)
    assert await running == [f"A{number}" for number in range(7)]
    one.close()


async def test_what_cannot_be_tokenised_in_time_is_refused_before_any_of_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, tokenizer = measured(), Tokenizer()
    monkeypatch.setattr(backlog, "time", Stopped)
    running = asyncio.create_task(one.run(tokenizer.asked("A", 6)))
    await until(lambda: tokenizer.order == "A")
    assert one.seconds("", 2 * SLICE_CHARACTERS) == pytest.approx(2)
    assert one.seconds("", 9 * SLICE_CHARACTERS) == pytest.approx(5 + 9)
    with pytest.raises(Overloaded, match=r"it would take about 11\.0 s, and 10\.0 s") as refused:
        await one.run(tokenizer.asked("B", 6, finish_by=110.0))
    assert 11 <= (refused.value.retry_after_seconds or 0) <= 22
    fits = asyncio.create_task(one.run(tokenizer.asked("C", 6, finish_by=111.5)))
    await asyncio.sleep(0)
    tokenizer.gate.release(12)
    await asyncio.gather(running, fits)
    assert tokenizer.order == "A" * 6 + "C" * 6
    one.close()


async def test_it_waits_for_a_bounded_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MAX_REQUESTS", 2)
    one, tokenizer = measured(), Tokenizer()
    waiting = [asyncio.create_task(one.run(tokenizer.asked("A", 1))) for _ in range(2)]
    await until(lambda: tokenizer.order)
    with pytest.raises(Overloaded, match="2 requests wait for the tokenizer"):
        await one.run(tokenizer.asked("B", 1))
    tokenizer.gate.release(3)
    await asyncio.gather(*waiting)
    assert await one.run(tokenizer.asked("C", 1)) == ["C0"]
    one.close()


async def test_the_time_of_a_character_follows_what_slices_took() -> None:
    one = measured()
    for _ in range(100):
        one.account("texts", 1000, 0.5)
    assert one.seconds("", 2000) == pytest.approx(1, rel=0.05)
    one.account("texts", 1000, 1000.0)  # the machine slept
    assert one.seconds("", 2000) < 1.5


async def test_an_error_of_a_slice_ends_its_request_alone() -> None:
    one, tokenizer = measured(), Tokenizer()

    def broken(inputs: Sequence[str], first: int) -> list[str]:
        raise ValueError(f"input {first}")

    asked = TokenizerWork(Caller(), ["x"] * 3, [SLICE_CHARACTERS] * 3, broken)
    failing = asyncio.create_task(one.run(asked))
    tokenizer.gate.release()
    right = asyncio.create_task(one.run(tokenizer.asked("A", 1)))
    with pytest.raises(ValueError, match="input 0"):
        await failing
    assert await right == ["A0"]
    one.close()


async def test_closing_refuses_what_waits() -> None:
    one, tokenizer = measured(), Tokenizer()
    waiting = [asyncio.create_task(one.run(tokenizer.asked("A", 3))) for _ in range(2)]
    await until(lambda: tokenizer.order)
    tokenizer.gate.release(1)
    one.close()
    for task in waiting:
        with pytest.raises(EngineUnavailable, match="stopping"):
            await task
    assert tokenizer.order == "A"
    with pytest.raises(EngineUnavailable):
        await one.run(tokenizer.asked("B", 1))


async def test_memory_goes_back_after_large_slices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one, released = measured(), list[int]()
    monkeypatch.setattr(backlog, "release_memory", lambda: released.append(1))
    for size, count in ((SLICE_CHARACTERS, 0), (LARGE_CHARACTERS + 1, 1)):
        await one.run(TokenizerWork(Caller(), ["a"], [size], lambda inputs, _: [*inputs]))
        assert len(released) == count
