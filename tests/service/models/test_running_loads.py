"""Running loads: joined by the same command, refused to others, and the time that is left."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from service.artifacts.repository import Target
from service.models.running_loads import FIRST_LOAD_SECONDS, Loaded, RunningLoads
from tests.service.harness import Client, assert_problem, until
from tests.service.repositories import ADMIN, control_of, encode, load, states

pytestmark = pytest.mark.anyio


async def test_two_loads_at_once_and_an_unload_of_what_loads(
    client: Client, gate: threading.Event
) -> None:
    gate.clear()  # the measured batches of a start wait
    first = asyncio.create_task(load(client, "a", version="1"))
    await until(lambda: Target("a", "1") in control_of(client).loads)
    same = asyncio.create_task(load(client, "a", version="1"))
    assert_problem(await load(client, "a", version="2"), 409, "a@1 has been loading")
    assert_problem(await client.delete("/models/a", headers=ADMIN), 409, "a@1 has been loading")
    assert (await states(client, "a"))["1"] == "loading"
    late = await encode(client, "a", **{"x-request-timeout-ms": "50"})
    assert_problem(late, 503, "a is still being loaded", "Unhealthy")
    gate.set()
    replies = await asyncio.gather(first, same)
    assert [reply.json()["loaded"]["version"] for reply in replies] == ["1", "1"]


async def test_the_time_that_is_left_follows_the_load_before() -> None:
    loads = RunningLoads()

    async def endless() -> Loaded:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    running = asyncio.create_task(loads.run(Target("a"), None, endless()))
    await asyncio.sleep(0)
    assert loads.targets == [Target("a")]
    assert loads.seconds_left("a") == FIRST_LOAD_SECONDS
    loads.expect_export("a", 120)
    assert loads.seconds_left("a") == 120 + FIRST_LOAD_SECONDS
    load = loads.of("a")
    assert load is not None
    load.began, load.opens = time.monotonic() - 400, time.monotonic() - 40
    loads.measured("a")
    load.began = load.opens = time.monotonic()
    assert loads.seconds_left("a") == 40, "without the seconds of the export"
    load.began, load.opens = time.monotonic() - 400, time.monotonic() - 100
    assert loads.seconds_left("a") == 100, "it takes longer than the load before"
    assert loads.seconds_left("b") == 1, "without a load"
    await loads.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not loads.names
