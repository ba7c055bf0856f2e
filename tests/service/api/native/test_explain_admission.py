"""How many explanations are admitted at once, by the rate that was measured at start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import httpx
import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Task
from service.models.state import state_of
from tests.service.harness import AnsweringEngine, Client, serving

pytestmark = pytest.mark.anyio
WORDS = " ".join(["cat"] * 18)
BODY = {"inputs": [[WORDS, WORDS]], "include": ["occlusion"]}
TOKENS = 2 * 20 + 2 * 20 * 20
"""Tokens of an explanation: the vectors of two texts of 20 tokens, and a pass for each token."""


class Held(AnsweringEngine):
    """An engine whose rate was measured, and whose batches wait until it is let go."""

    def __init__(self, artifact: Artifact, seconds: float, batches: int = 0) -> None:
        """Take the seconds of a whole explanation alone, and how many batches do not wait."""
        self.going, self.free = threading.Event(), batches
        super().__init__(self.wait, artifact.manifest.config)
        self.measured = [(1, seconds / TOKENS), (512, 512 * seconds / TOKENS)]

    def wait(self, _: Sequence[Task]) -> None:
        assert self.batches <= self.free or self.going.wait(60)


async def at_once(client: Client, engine: Held, requests: int) -> list[httpx.Response]:
    """Send requests, and let the engine go once all are admitted or refused."""
    waiting = [asyncio.create_task(client.post("/explain", json=BODY)) for _ in range(requests)]
    engines = state_of(client.app).models.default.inference.engines
    lane = engines.default.lanes["attention"]
    async with asyncio.timeout(60):
        while len(lane.promises._open) + sum(task.done() for task in waiting) < requests:
            await asyncio.sleep(0.001)
    engine.going.set()
    return [await task for task in waiting]


@pytest.mark.parametrize(
    ("seconds", "admitted"),
    [(2.0, 8), (16.0, 3), (25.0, 2), (80.0, 1)],
    ids=["all fit", "three have half of it", "two do", "one is cut even alone"],
)
async def test_of_a_fresh_service_as_many_as_have_time_for_half_are_admitted(
    artifact: Artifact, seconds: float, admitted: int
) -> None:
    engine = Held(artifact, seconds)
    async with serving(artifact, engine, queue_target_seconds=60.0) as client:
        replies = await at_once(client, engine, 8)
    statuses = sorted(reply.status_code for reply in replies)
    assert statuses == [200] * admitted + [429] * (8 - admitted)
    reported = [int(reply.headers["retry-after"]) for reply in replies if reply.status_code == 429]
    assert all(10 <= seconds <= 62 for seconds in reported), reported


async def test_one_that_an_idle_service_cuts_is_admitted_and_answered_in_part(
    artifact: Artifact,
) -> None:
    """A 429 that can never succeed helps nobody."""
    engine = Held(artifact, 4.0, batches=3)
    async with serving(artifact, engine, max_batch_tokens=64) as client:
        headers = {"x-request-timeout-ms": "2000"}
        reply = await client.post("/explain", json=BODY, headers=headers)
        engine.going.set()
    assert reply.status_code == 200, reply.text
    (found,) = reply.json()["results"]
    assert [len(text["tokens"]) for text in found["texts"]] == [20, 20]
    assert found["partial"]
    assert 0 < found["computed"]["occlusion"] < 40
