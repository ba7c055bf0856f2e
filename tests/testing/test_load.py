"""Load generator in this process: times of requests, and outcomes of replies."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import numpy as np
import pytest

from testing.load import Generator, Job, Result, arrivals
from tests.testing.servers import Answer, answering, streaming

REQUESTS: list[tuple[str, object]] = [("/encode", {"inputs": f"{n}"}) for n in range(4)]


def run(job: Job) -> Result:
    async def connected() -> Result:
        async with Generator(job) as generator:
            return await generator.run()

    return asyncio.run(connected())


def inputs(requests: list[tuple[str, dict[str, str], bytes]]) -> list[str]:
    return [json.loads(body)["inputs"] for _, _, body in requests]


def test_arrivals_are_a_fixed_poisson_process() -> None:
    times = arrivals(20_000, 50)
    gaps = np.diff(times)
    assert times == arrivals(20_000, 50)
    assert times == pytest.approx([2 * at for at in arrivals(20_000, 100)])
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)


def test_a_closed_loop_sends_each_request_once_in_turn() -> None:
    with answering() as asked:
        result = run(Job(asked.port, REQUESTS, connections=1, headers={"accept": "x/y"}))
    assert inputs(asked.requests) == ["0", "1", "2", "3"]
    assert {headers["accept"] for _, headers, _ in asked.requests} == {"x/y"}
    assert result.outcomes == ["right"] * 4
    assert result.connections == 1
    assert 0 < sum(result.latencies_ms) / 1000 <= result.seconds


def test_a_closed_loop_has_as_many_requests_at_once_as_connections() -> None:
    together = threading.Barrier(3)

    def answer(*_: object) -> Answer:
        together.wait(20)  # breaks unless three are waiting at once
        return 200, {}, b""

    with answering(answer) as asked:
        result = run(Job(asked.port, REQUESTS, count=9, connections=3))
    assert result.outcomes == ["right"] * 9
    assert sorted(inputs(asked.requests)) == sorted("0123" * 2 + "0")


def test_a_closed_loop_for_a_time_begins_after_its_warm_up() -> None:
    with answering() as asked:
        job = Job(asked.port, REQUESTS[:2], connections=2, seconds=0.2, warm_up_seconds=0.1)
        result = run(job)
    assert 0 < len(result.outcomes) < len(asked.requests)
    assert result.seconds >= 0.2
    assert max(result.due_seconds) < 0.2
    assert set(inputs(asked.requests)) == set("01")


def test_an_open_loop_does_not_wait_for_the_server() -> None:
    seen = threading.Barrier(20)

    def answer(*_: object) -> Answer:
        seen.wait(20)  # no reply before all have been sent
        return 200, {}, b""

    with answering(answer) as asked:
        result = run(Job(asked.port, REQUESTS, count=20, rate=1000))
    assert result.outcomes == ["right"] * 20
    assert result.connections == 20
    assert sorted(result.due_seconds) == pytest.approx(arrivals(20, 1000))
    ends = [
        due + ms / 1000 for due, ms in zip(result.due_seconds, result.latencies_ms, strict=True)
    ]
    assert min(ends) >= max(result.due_seconds)


def test_an_open_loop_keeps_to_its_connections_and_counts_the_wait_for_one() -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    def answer(*_: object) -> Answer:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.01)
        with lock:
            at_once -= 1
        return 200, {}, b""

    with answering(answer) as asked:
        result = run(Job(asked.port, REQUESTS, count=20, rate=10_000, connections=2))
    assert most <= 2
    assert max(result.latencies_ms) + 1000 * max(result.due_seconds) >= 10 * 10  # ten turns


def test_outcomes() -> None:
    replies = {"0": (200, b"a"), "1": (200, b"b"), "2": (429, b""), "3": (500, b"")}

    def answer(_: str, body: bytes) -> Answer:
        status, content = replies[json.loads(body)["inputs"]]
        return status, {"Retry-After": "3"} if status == 429 else {}, content

    with answering(answer) as asked:
        result = run(Job(asked.port, REQUESTS, connections=1, replies=["a"] * 4))
    assert result.outcomes == ["right", "wrong", "shed", "500"]
    assert result.retries_after == [None, None, "3", None]
    assert len(result.latencies("right")) == 1
    assert result.latencies("right", since=result.due_seconds[1]) == []


def test_a_request_that_hangs() -> None:
    done = threading.Event()

    def answer(*_: object) -> Answer:
        done.wait(20)
        return 200, {}, b""

    with answering(answer) as asked:
        result = run(Job(asked.port, REQUESTS[:1], connections=1, patience_seconds=0.1))
        done.set()
    assert result.outcomes == ["hung"]


@pytest.mark.parametrize(("resend", "outcome"), [(False, "lost"), (True, "right")])
def test_a_connection_that_ended_while_it_was_idle(resend: bool, outcome: str) -> None:
    async def twice() -> Result:
        asked = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            await reader.read(65536)
            asked += 1
            if asked > 1:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        async with streaming(answer) as port:
            job = Job(port, REQUESTS[:1], connections=1, resend=resend)
            async with Generator(job) as generator:
                return await generator.run()

    assert asyncio.run(twice()).outcomes == [outcome]
