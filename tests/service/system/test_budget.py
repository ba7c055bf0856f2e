"""Memory budget of large replies, and the time for which each holds its share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.api.native.attention.maps import STREAM_BYTES
from service.api.native.texts import text_bytes
from service.engines.fake import FakeEngine
from service.errors import Overloaded, RequestTooLarge
from service.inference.attention.stream import CHUNK_TOKENS
from service.inference.tokenization.text import Text
from service.models.state import state_of
from service.system.budget import RELEASE_BYTES, ByteBudget, Reservation, releasing
from testing.blocking import RawConnection
from testing.client import request
from tests.service.harness import (
    CONFIG,
    GatedEngine,
    assert_problem,
    hold,
    listening,
    serving,
    tokenized,
    until,
)

BINARY = {"accept": "application/vnd.safetensors"}
LONG = "a " * 510
MAPS = 4 * 2 * 2 * 512 * 512
"""Bytes of all maps of `LONG`."""


def test_a_budget_counts_what_one_holds_already() -> None:
    budget = ByteBudget(100, "bodies")
    budget.take(500)
    budget.take(500, own=500)
    with pytest.raises(Overloaded, match="bodies in flight hold 1000 of 100 bytes"):
        budget.take(1)
    budget.give_back(1000)
    budget.take(60)
    budget.take(40)
    with pytest.raises(Overloaded):
        budget.take(1, own=60)
    budget.give_back(100)
    assert budget.held == 0


@pytest.mark.anyio
async def test_memory_goes_back_once_much_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[int] = []
    monkeypatch.setattr("service.system.budget.RELEASE_SECONDS", 0.01)
    budget, other = ByteBudget(100), ByteBudget(100)
    async with releasing((budget, other), lambda: released.append(budget.returned)):
        await until(lambda: released)  # what the start has left
        with hold(budget, RELEASE_BYTES):
            await asyncio.sleep(0.05)
            assert released == [0]  # it is in use
        await until(lambda: len(released) == 2)
        await asyncio.sleep(0.05)
        assert released == [0, RELEASE_BYTES]  # once
        for _ in range(4):
            with hold(other, RELEASE_BYTES // 4):
                pass
        await until(lambda: len(released) == 3)


@pytest.mark.anyio
async def test_a_failed_release_is_logged_and_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def release() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("the arena is busy")

    monkeypatch.setattr("service.system.budget.RELEASE_SECONDS", 0.01)
    budget = ByteBudget(100)
    async with releasing((budget,), release):
        await until(lambda: calls)
        with hold(budget, RELEASE_BYTES):
            pass
        await until(lambda: len(calls) == 2)
    assert "the arena is busy" in caplog.text


def test_a_reservation_grows_shrinks_and_goes_back_once() -> None:
    budget, ended = ByteBudget(100), []
    reservation = Reservation(budget)
    reservation.on_release(lambda: ended.append(budget.held))
    reservation.grow(50)
    reservation.grow(30)
    assert (budget.held, budget.requests) == (80, 1)
    reservation.shrink(20)
    assert (budget.held, budget.returned) == (60, 20)
    for _ in range(2):
        reservation.release()
        assert (budget.held, budget.requests, reservation.size) == (0, 0, 0)
    assert ended == [0]


def test_a_request_that_could_never_fit_is_told_so_and_holds_nothing_more() -> None:
    budget = ByteBudget(100)
    reservation = Reservation(budget)
    reservation.grow(60)
    with pytest.raises(RequestTooLarge, match=r"101 bytes .* more than 100 \(--max-bytes-in-fl"):
        reservation.grow(41)
    assert budget.held == 60
    reservation.grow(200, bounded=True)  # its reply: nobody else holds anything
    assert budget.held == 260


def test_another_request_waits_until_there_is_room_and_is_told_for_how_long() -> None:
    budget = ByteBudget(100)
    first, second = Reservation(budget), Reservation(budget)
    first.grow(60)
    budget._seconds = 20.0  # for which requests of late held their bytes
    with pytest.raises(Overloaded, match="hold 60 of 100 bytes") as refused:
        second.grow(55)
    assert budget.held == 60
    assert refused.value.retry_after_seconds == 5  # a quarter of what is held has to come back
    with pytest.raises(Overloaded), hold(budget, 41):
        pytest.fail("it was let in")
    second.grow(40)
    first.release()
    second.grow(60)


def test_small_requests_fit_beside_large_ones_that_fill_it() -> None:
    budget = ByteBudget(2**20)
    large, small = Reservation(budget), Reservation(budget)
    large.grow(2**20)
    small.grow(128)
    with pytest.raises(Overloaded):
        small.grow(1)  # it is not small any more
    others = [Reservation(budget) for _ in range(600)]
    admitted = 0
    with contextlib.suppress(Overloaded):
        for other in others:
            other.grow(128)
            admitted += 1
    assert 500 < admitted < 600
    assert budget.held <= 2**20 + 2**16


HIDDEN = 2 * 128 * 4
"""Bytes of a token's hidden states that enter the artifact's layers."""
STREAM = STREAM_BYTES + CHUNK_TOKENS * HIDDEN
"""Bytes that a streamed reply to many tokens holds."""


REQUEST = 2**20
"""More than a request of these tests holds beside its reply: its values and its tokens."""


def held(app: Any) -> int:
    budget: ByteBudget = state_of(app).replies
    return budget.held


def streams(app: Any) -> bool:
    """Whether a streamed reply, and its request, are held and nothing else."""
    return STREAM < held(app) < STREAM + REQUEST


@pytest.mark.anyio
async def test_others_are_refused_over_http_until_there_is_room(artifact: Artifact) -> None:
    engine = GatedEngine()
    limits = {"max_bytes_in_flight": 115_000}
    async with serving(artifact, engine, **limits) as client:
        body = {"inputs": "a " * 48}  # 4 maps of 50 × 50, 40 000 bytes and their header
        first = asyncio.create_task(client.post("/attention", json=body, headers=BINARY))
        await until(lambda: engine.batches)
        holds = held(client.app)
        tokens = 50 * (HIDDEN + Text.token_bytes)
        assert 40_000 < holds - tokens < 55_000
        refused = await client.post("/attention", json=body, headers=BINARY)
        assert_problem(refused, 429, says="of 115000 bytes", error_type="Overloaded")
        assert refused.headers["retry-after"] == "1"
        assert held(client.app) == holds
        small = asyncio.create_task(client.post("/attention", json={"inputs": "a"}))
        said = text_bytes([tokenized(3)])
        least = holds + 4 * 9 * 15 + said + 3 * HIDDEN
        await until(lambda: least < held(client.app) < least + 4096)
        engine.let_through()
        assert (await first).status_code == (await small).status_code == 200
        assert held(client.app) == 0
        again = await client.post("/attention", json=body, headers=BINARY)
        assert 0 < holds - tokens - len(again.content) < 5000
        assert (await first).content == again.content


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "headers", "share"),
    [
        ({}, BINARY, "stream"),
        ({}, {}, "stream"),
        ({"include": ["weights", "stats"]}, BINARY, "stream"),
        # the budget is smaller than a stream's maximum
        ({"include": ["stats", "rollout"]}, BINARY, "whole"),
        ({"dtype": "float16"}, BINARY, "stream"),
        ({"dtype": "float16", "include": ["weights", "stats"]}, BINARY, "whole"),
        ({"top_k": 300}, BINARY, "whole"),
        ({"top_k": 300}, {}, "whole"),
    ],
)
async def test_a_reply_holds_what_it_has_in_memory(
    artifact: Artifact, asked: dict[str, Any], headers: dict[str, str], share: str
) -> None:
    engine = GatedEngine()
    async with serving(artifact, engine, max_response_bytes=2**40) as client:
        body = {"inputs": [LONG] * 17, **asked}
        asking = asyncio.create_task(client.post("/attention", json=body, headers=headers))
        await until(lambda: engine.batches)
        engine.let_through(1)
        if share == "stream":
            assert streams(client.app)
        else:
            least = {"stats": 17 * 512 * 512 * 4, "weights": 17 * MAPS // 2, None: 17 * MAPS // 2}
            assert held(client.app) > least[asked.get("include", [None])[0]]
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: held(client.app) == 0)


# ── over a socket ──────────────────────────────────────────────────────────────────────────


def slow_reader(port: int, body: dict[str, Any]) -> RawConnection:
    """Open a connection that requests a binary reply and does not read it."""
    connection = RawConnection(("127.0.0.1", port), receive_bytes=4096)
    connection.send(request("/attention", body, BINARY))
    return connection


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def settled(engine: Counting) -> int:
    """Return the number of maps that an engine has computed, once it computes no more.

    It is looked at several times: after a machine stood still, whoever looks may come before it.
    """
    seen = [-1]
    while len(seen) < 8 or len({*seen[-8:]}) > 1:
        time.sleep(0.03)
        seen.append(engine.maps)
    return seen[-1]


class Counting(FakeEngine):
    """Engine that counts the maps it computed."""

    maps = 0

    def expected(self, task: Any) -> Any:
        output = super().expected(task)
        self.maps += output.maps is not None
        return output


@pytest.mark.parametrize("texts", [10])
def test_a_slow_reader_holds_it_until_the_last_byte_is_written(
    artifact: Artifact, texts: int
) -> None:
    engine = Counting(CONFIG)
    body = {"inputs": [LONG] * texts}
    with listening(artifact, engine, max_bytes_in_flight=STREAM) as (app, port):
        url = f"http://127.0.0.1:{port}/attention"
        with slow_reader(port, body) as connection:
            wait_for(lambda: streams(app))
            wait_for(lambda: engine.maps >= 4)
            computed = settled(engine)  # the buffers are full
            assert streams(app)
            assert 4 <= computed < 2 * texts
            refused = httpx.post(url, json={"inputs": [LONG] * 5}, headers=BINARY)
            assert_problem(refused, 429, says="bytes", error_type="Overloaded")
            assert refused.headers["retry-after"] == "1"
            time.sleep(0.2)
            assert engine.maps == computed
            reply = connection.receive()
            assert reply.status == 200
            wait_for(lambda: held(app) == 0)
        tensors = load(reply.body)
        assert [tensors[f"attention.{i}"].shape for i in range(texts)] == [(2, 2, 512, 512)] * texts
        assert httpx.post(url, json={"inputs": "a"}).status_code == 200
        assert httpx.post(url, json=body, headers=BINARY, timeout=60).content == reply.body


def test_a_reader_that_leaves_releases_it_and_ends_the_work(artifact: Artifact) -> None:
    engine = Counting(CONFIG)
    with listening(artifact, engine, max_bytes_in_flight=STREAM) as (app, port):
        with slow_reader(port, {"inputs": [LONG] * 10}):
            wait_for(lambda: engine.maps >= 4)
            assert streams(app)
        wait_for(lambda: held(app) == 0)
        computed = settled(engine)
        assert computed < 20
        lane = state_of(app).models.default.inference.engines.default.lanes["attention"]
        assert lane.queued_tokens == 0
        url = f"http://127.0.0.1:{port}/attention"
        assert httpx.post(url, json={"inputs": "a"}).status_code == 200
        assert settled(engine) == computed + 2
