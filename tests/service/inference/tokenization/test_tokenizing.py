"""Thread in which an input is tokenised: only a single short text may block the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from math import inf
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.errors import DeadlinePassed, Unprocessable
from service.inference.tokenization.tokenizer import Options, TextTokenizer, TokenizedText
from service.inference.tokenization.tokenizing import (
    INLINE_CHARACTERS,
    SLICE_CHARACTERS,
    RequestLimits,
    Tokenizing,
)
from tests.service.harness import serving, tokenized, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("inputs", "on_the_loop"),
    [
        ("short", True),
        ([["a short", "pair"]], True),
        ("a " * (INLINE_CHARACTERS // 2), True),
        ("a " * (INLINE_CHARACTERS // 2) + "b", False),
        ([["a " * (INLINE_CHARACTERS // 2), "b"]], False),
        (["", ""], False),
        ([""] * 512, False),
    ],
)
async def test_only_one_short_text_is_tokenised_on_the_event_loop(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, inputs: Any, on_the_loop: bool
) -> None:
    threads = []
    tokenize = TextTokenizer.tokenize

    def note(self: TextTokenizer, *arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return tokenize(self, *arguments)

    monkeypatch.setattr(TextTokenizer, "tokenize", note)
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        reply = await client.post("/encode", json={"inputs": inputs, "truncate": True})
    assert reply.status_code == 200
    assert {thread == threading.get_ident() for thread in threads} == {on_the_loop}


# ── in slices ──────────────────────────────────────────────────────────────────────────────


class Steps:
    """Tokenizer whose slices run one at a time, when the test releases them."""

    def __init__(self) -> None:
        self.slices: list[list[str]] = []
        self.gate = threading.Semaphore(0)

    def tokenize(self, inputs: list[str], options: Options, first: int = 0) -> list[TokenizedText]:
        self.slices.append(inputs)
        assert self.gate.acquire(timeout=60)
        return [tokenized(1 + first + index) for index in range(len(inputs))]


def tokenizing(steps: Steps, **limits: int) -> Tokenizing:
    found = {"max_inputs": 100, "max_characters": 10**6, **limits}
    return Tokenizing(steps, RequestLimits(**found), 2)  # type: ignore[arg-type]


LONG = "a" * (SLICE_CHARACTERS // 2 + 1)


async def test_a_list_is_tokenised_a_slice_at_a_time_in_order() -> None:
    steps = Steps()
    running = asyncio.create_task(
        tokenizing(steps).tokenize([LONG] * 3 + ["a"] * 5, Options(), inf)
    )
    for count in (1, 2, 3):
        await until(lambda count=count: len(steps.slices) == count)
        await asyncio.sleep(0.01)
        assert len(steps.slices) == count  # no slice before the previous one has ended
        steps.gate.release()
    assert [len(text.input_ids) for text in await running] == list(range(1, 9))
    assert steps.slices == [[LONG], [LONG], [LONG] + ["a"] * 5]


async def test_a_request_of_many_slices_keeps_no_other_waiting() -> None:
    steps = Steps()
    one = tokenizing(steps)
    many = [asyncio.create_task(one.tokenize([LONG] * 40, Options(), inf)) for _ in range(3)]
    await until(lambda: len(steps.slices) >= 1)
    other = asyncio.create_task(one.tokenize(["b", "c"], Options(), inf))
    await asyncio.sleep(0)
    for _ in range(8):
        steps.gate.release()
    assert len(await other) == 2
    for task in many:
        task.cancel()
    steps.gate.release(200)
    await asyncio.gather(*many, return_exceptions=True)
    assert len(steps.slices) < 20
    one.close()


async def test_it_ends_at_the_deadline_and_when_its_caller_leaves() -> None:
    steps = Steps()
    one = tokenizing(steps)
    late = one.tokenize([LONG] * 3, Options(), time.monotonic() - 1)
    with pytest.raises(DeadlinePassed, match="0 of 3 inputs"):
        await late
    assert steps.slices == []
    leaves = asyncio.create_task(one.tokenize([LONG] * 3, Options(), inf))
    await until(lambda: steps.slices)
    leaves.cancel()
    steps.gate.release(10)
    await asyncio.gather(leaves, return_exceptions=True)
    one.close()
    assert len(steps.slices) == 1


async def test_closing_waits_for_one_slice_at_most() -> None:
    steps = Steps()
    one = tokenizing(steps)
    waiting = [asyncio.create_task(one.tokenize([LONG] * 9, Options(), inf)) for _ in range(9)]
    await until(lambda: steps.slices)
    steps.gate.release(100)
    one.close()
    assert len(steps.slices) < 81
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_request_is_bounded_in_inputs_and_characters() -> None:
    steps = Steps()
    one = tokenizing(steps, max_inputs=3, max_characters=20)
    for inputs, says in (
        (["a"] * 4, "4 inputs in one request; at most 3"),
        (["a" * 7] * 3, "21 ch"),
    ):
        with pytest.raises(Unprocessable, match=says):
            await one.tokenize(inputs, Options(), inf)
    assert steps.slices == []


async def test_its_threads_give_way_to_the_event_loop() -> None:
    class Nice(Steps):
        def tokenize(self, *_: Any) -> list[TokenizedText]:
            self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            return []

    steps = Nice()
    await tokenizing(steps).tokenize(["a", "b"], Options(), inf)
    assert steps.niceness > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
