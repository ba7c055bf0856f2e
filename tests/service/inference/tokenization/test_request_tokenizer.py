"""Threads and order in which requests are tokenised."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import TOKENIZER, Artifact
from service.engines.fake import FakeEngine
from service.errors import Overloaded, RequestTooLarge, Unprocessable
from service.inference.tokenization.backlog import SLICE_CHARACTERS, Backlog
from service.inference.tokenization.inputs import Picture, TokenIds, characters
from service.inference.tokenization.request_tokenizer import (
    CHARACTER_SECONDS,
    INLINE_CHARACTERS,
    INPUT_CHARACTERS,
    SOME_CHARACTERS,
    WORKING_BYTES,
    RequestTokenizer,
)
from service.inference.tokenization.text import TEXT_BYTES, ArrayText, Text
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.models.state import state_of
from service.scheduler.call import ANYBODY, NOTHING, Call
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import serving, tokenized, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("inputs", "on_the_loop"),
    [
        ("short", True),
        ([["a short", "pair"]], True),
        ("a" * (INLINE_CHARACTERS - INPUT_CHARACTERS), True),
        ("a" * (INLINE_CHARACTERS - INPUT_CHARACTERS + 1), False),
        (["a" * (INLINE_CHARACTERS // 2 - INPUT_CHARACTERS)] * 2, True),
        ([["a" * (INLINE_CHARACTERS - INPUT_CHARACTERS), "b"]], False),
        ([""] * (INLINE_CHARACTERS // INPUT_CHARACTERS), True),
        ([""] * (INLINE_CHARACTERS // INPUT_CHARACTERS + 1), False),
    ],
)
async def test_only_short_inputs_are_tokenised_on_the_event_loop(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, inputs: Any, on_the_loop: bool
) -> None:
    threads = []
    tokenize = TextTokenizer.tokenize

    def note(self: TextTokenizer, *arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return tokenize(self, *arguments)

    monkeypatch.setattr(TextTokenizer, "tokenize", note)
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        reader: Any = state_of(client.app).models.default.inference.reader
        reader._next_at = math.inf  # as after another request
        threads.clear()  # of the measurement at start
        reply = await client.post("/encode", json={"inputs": inputs, "truncate": True})
    assert reply.status_code == 200
    assert {thread == threading.get_ident() for thread in threads} == {on_the_loop}


# ── in slices ──────────────────────────────────────────────────────────────────────────────


class Steps:
    """Tokenizer whose slices run one at a time, when the test releases them."""

    template_tokens = template_characters = 0
    separator_ids = target_separator_ids = frozenset[int]()
    expects_prompt = False

    def __init__(self) -> None:
        self.slices: list[list[str]] = []
        self.gate = threading.Semaphore(0)

    def tokenize(self, inputs: list[str], options: Options, first: int = 0) -> list[Text]:
        self.slices.append(inputs)
        self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        assert self.gate.acquire(timeout=60)
        return [tokenized(1 + first + index) for index in range(len(inputs))]

    def limit(self, options: Options) -> int:
        return options.max_tokens or self.limits.max_tokens


def tokenizing(steps: Steps, **limits: int) -> RequestTokenizer:
    steps.limits = Limits(512, 10**6, **limits)
    one = RequestTokenizer(steps)  # type: ignore[arg-type]
    one._backlog = Backlog(1)
    return one


LONG = "a" * (SLICE_CHARACTERS // 2 + 1)


async def test_a_list_is_tokenised_a_slice_at_a_time_in_order() -> None:
    steps = Steps()
    running = asyncio.create_task(
        tokenizing(steps).tokenize([LONG] * 3 + ["a"] * 5, Options(), ANYBODY)
    )
    for count in (1, 2, 3):
        await until(lambda count=count: len(steps.slices) == count)
        await asyncio.sleep(0.01)
        assert len(steps.slices) == count  # no slice before the previous one has ended
        steps.gate.release()
    assert [len(text.input_ids) for text in await running] == list(range(1, 9))
    assert steps.slices == [[LONG], [LONG], [LONG] + ["a"] * 5]
    assert steps.niceness > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_characters_of_each_form() -> None:
    inputs = ["four", ("one", "two"), TokenIds((1, 2)), Picture(b"a file")]
    assert characters(inputs) == 4 + 6 + 2 + 6


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (["a text", Picture(b"a file")], r"d\[1\] is a picture, and only texts are read here"),
        (["a"] * 4, "4 inputs in one request; at most 3"),
        (["a" * 7] * 3, "the request has 21 characters; at most 20"),
    ],
)
async def test_a_request_of_pictures_or_of_too_much_is_refused(inputs: Any, says: str) -> None:
    one = tokenizing(steps := Steps(), max_inputs=3, max_request_characters=20)
    with pytest.raises(Unprocessable, match=says):
        await one.tokenize(inputs, Options(naming="d[{}]"), ANYBODY)
    assert steps.slices == []


# ── what it may hold ───────────────────────────────────────────────────────────────────────


async def test_memory_is_held_before_texts_are_tokenised_and_by_their_size_after() -> None:
    steps, budget = Steps(), ByteBudget(2**20)
    one, reservation = tokenizing(steps), Reservation(budget)
    caller = Call(reservation=reservation)
    running = asyncio.create_task(one.tokenize(["a" * 2000] * 3, Options(), caller))
    await until(lambda: steps.slices)
    most = budget.held
    assert most == 3 * (TEXT_BYTES + 512 * Text.token_bytes)
    steps.gate.release()
    texts = await running
    assert budget.held == sum(text.nbytes for text in texts) < most / 5
    reservation.release()
    assert budget.held == 0
    one.close()


async def test_texts_of_large_requests_are_kept_in_arrays(artifact: Artifact) -> None:
    limits = Limits(max_tokens=512, max_characters=10**6)
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), artifact.manifest.sentence, limits)
    one = RequestTokenizer(tokenizer)
    text = "a pair of rivers " * (SLICE_CHARACTERS // 4 // 17)
    for count, kind in ((4, Text), (5, ArrayText)):
        texts = await one.tokenize([text] * count, Options(truncate=True), ANYBODY)
        (alone,) = tokenizer.tokenize([text], Options(truncate=True))
        for found in texts:
            assert type(found) is kind
            assert found.tokens == alone.tokens
            assert found.offsets == alone.offsets
            assert found.segments == alone.segments == [0] * 512
            assert [*found.special_tokens_mask] == alone.special_tokens_mask
            assert found.truncated
            np.testing.assert_array_equal(found.input_ids, alone.input_ids)
            np.testing.assert_array_equal(found.segment_ids, alone.segment_ids)
    one.close()


def test_one_longer_request_at_a_time_is_tokenised_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, options = tokenizing(Steps()), Options(truncate=True)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    most = "a" * (SOME_CHARACTERS - INPUT_CHARACTERS)

    def at_once(text: str) -> bool:
        return one.demand([text], options, ANYBODY) is NOTHING

    assert [at_once(most + "a"), at_once(most), at_once(most)] == [False, True, False]
    now += SOME_CHARACTERS * CHARACTER_SECONDS
    assert [at_once(most), at_once("a")] == [True, True]


@pytest.mark.parametrize("in_arrays", [False, True])
def test_texts_take_the_memory_that_is_reserved(artifact: Artifact, in_arrays: bool) -> None:
    """In a process of its own, in which no freed memory is used again."""
    code = f"""
import gc, sys
from pathlib import Path
from model.artifact.sentence import SentenceConfig
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.system.resources import release_memory

def resident():
    gc.collect()
    release_memory()
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])

limits = Limits(10**6, 10**6)
tokenizer = TextTokenizer(Path(sys.argv[1]), SentenceConfig(max_length=512), limits)
(text,) = tokenizer.tokenize(["!" * 2000], Options())
before, texts = resident(), []
for _ in range(200):
    (text,) = tokenizer.tokenize(["!" * 2000], Options())
    texts.append(text.in_arrays() if {in_arrays} else text)
print(resident() - before, sum(text.nbytes for text in texts))
"""
    command = [sys.executable, "-c", code, str(artifact.path(TOKENIZER))]
    printed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    taken, reserved = map(int, printed.split())
    assert 0.5 * reserved < taken < reserved


async def test_what_does_not_fit_into_memory_is_refused_before_it_is_tokenised() -> None:
    steps = Steps()
    one, most = tokenizing(steps), 9 * (TEXT_BYTES + 512 * Text.token_bytes)
    alone = Call(reservation=Reservation(ByteBudget(most - 1)))
    with pytest.raises(RequestTooLarge, match=rf"{most} bytes of memory, more than {most - 1} "):
        await one.tokenize(["a" * 600] * 9, Options(), alone)
    budget = ByteBudget(2 * most - 1)
    reservation = Reservation(budget)
    reservation.grow(most)
    with pytest.raises(Overloaded, match=f"hold {most} of {2 * most - 1} bytes"):
        await one.tokenize(["a" * 600] * 9, Options(), Call(reservation=Reservation(budget)))
    assert steps.slices == []


async def test_a_long_text_holds_what_the_tokenizer_takes_to_read_it() -> None:
    steps, budget = Steps(), ByteBudget(2**30)
    one, read = tokenizing(steps), 2 * SLICE_CHARACTERS
    caller = Call(reservation=Reservation(budget))

    def work(texts: Any, first: int) -> list[int]:
        return [budget.held for _ in texts]

    (held,) = await one.run(["a" * read], work, caller)
    assert held == WORKING_BYTES * (read - SLICE_CHARACTERS)
    assert budget.held == 0
    one.close()


# ── forecasts ──────────────────────────────────────────────────────────────────────────────


async def test_it_is_measured_before_the_first_request(artifact: Artifact) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        (model,) = client.app.service.models
        one = model.inference.request_tokenizer
    assert one._backlog.pace != 1e-6
    assert one._piece_cost != 1.0
    assert one._tokens_per_character != 0.25


async def test_a_demand_is_expected_by_characters_and_cut_as_the_texts_will_be() -> None:
    one = tokenizing(Steps())
    one._backlog.pace = 1e-3
    demand = one.demand(["a" * 1000, "a" * 50_000], Options(truncate=True), ANYBODY)
    assert (demand.texts, demand.tokens) == (2, 252 + 512)
    assert demand.tokenizing_seconds == pytest.approx(1.0 + 8 * 512 / 1000)
    assert one.demand(["short"], Options(), ANYBODY).tokens == 0
