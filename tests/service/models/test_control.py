"""Loads, swaps and unloads of models under requests."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from model.artifact.manifest import MANIFEST
from service.artifacts.repository import Target
from tests.service.harness import Client, assert_problem, until
from tests.service.repositories import (
    ADMIN,
    FINGERPRINT,
    control_of,
    encode,
    load,
    serving_repository,
    states,
)

pytestmark = pytest.mark.anyio


async def test_a_request_loads_the_newest_version_and_others_join_it(client: Client) -> None:
    replies = await asyncio.gather(*(encode(client, "a") for _ in range(8)))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.headers[FINGERPRINT] for reply in replies}) == 1
    assert await states(client, "a") == {"1": "available", "2": "serving"}
    assert (await encode(client, None)).headers["x-model"] == "a"


async def test_a_swap_gives_new_requests_the_new_version_and_running_ones_the_old(
    client: Client, gate: threading.Event
) -> None:
    assert (await load(client, "a", version="1")).json()["loaded"]["version"] == "1"
    old = (await encode(client, "a")).headers[FINGERPRINT]
    gate.clear()
    running = asyncio.create_task(encode(client, "a"))
    await until(lambda: control_of(client).models.named("a").uses.count == 1)
    loading = asyncio.create_task(load(client, "a", version="2"))
    gate.set()
    assert (await loading).json()["loaded"]["replaced"] == "1"
    assert (await running).headers[FINGERPRINT] == old
    new = (await encode(client, "a")).headers[FINGERPRINT]
    assert new != old
    assert_problem(await encode(client, "a", **{"x-expect-fingerprint": old}), 409)
    await until(lambda: not control_of(client).loader.draining)
    assert await states(client, "a") == {"1": "available", "2": "serving"}


async def test_what_cannot_be_loaded_leaves_the_old_version_serving(
    client: Client, repository: Path
) -> None:
    await load(client, "a", version="1")
    before = (await encode(client, "a")).headers[FINGERPRINT]
    graph = next((repository / "a" / "2").glob("*.onnx"))
    graph.write_bytes(graph.read_bytes()[:-1])
    problem = assert_problem(await load(client, "a", version="2"), 422, error_type="Backend")
    assert "a@2 cannot be loaded" in problem["detail"]
    assert (await encode(client, "a")).headers[FINGERPRINT] == before
    assert await states(client, "a") == {"1": "serving", "2": "failed"}


async def test_requests_do_not_repeat_a_failed_load(client: Client, repository: Path) -> None:
    (repository / "b" / MANIFEST).write_text("{}", encoding="utf-8")
    for _ in range(2):
        reply = await encode(client, "b")
        assert_problem(reply, 503, "b cannot be loaded: the service's log", "Unhealthy")
    assert int(reply.headers["retry-after"]) >= 1


async def test_a_load_does_not_join_one_that_gives_requests_something_else(
    client: Client, gate: threading.Event
) -> None:
    await load(client, "a", version="1")
    gate.clear()
    on_demand = asyncio.create_task(encode(client, "a@2"))
    await until(lambda: Target("a", "2") in control_of(client).loads)
    swap = asyncio.create_task(load(client, "a", version="2"))
    gate.set()
    assert (await swap).json()["loaded"]["replaced"] == "1"
    assert (await states(client, "a"))["2"] == "serving"
    assert (await on_demand).status_code == 200


async def test_versions_side_by_side_and_an_alias_between_them(client: Client) -> None:
    await load(client, "a", version="1")
    await load(client, "a", version="2", current=False)
    assert await states(client, "a") == {"1": "serving", "2": "loaded"}
    own = {version: (await encode(client, f"a@{version}")).headers[FINGERPRINT] for version in "12"}
    assert (await encode(client, "a")).headers[FINGERPRINT] == own["1"]
    for version in "21":
        reply = await load(client, "prod", target=f"a@{version}")
        assert reply.json()["target"] == f"a@{version}"
        assert (await encode(client, "prod")).headers[FINGERPRINT] == own[version]
    assert (await client.delete("/models/prod", headers=ADMIN)).json()["removed"] == "alias"
    assert_problem(await encode(client, "prod"), 404)


async def test_a_version_that_an_alias_names_stays_loaded_after_a_swap(client: Client) -> None:
    await load(client, "a", version="1")
    await load(client, "prod", target="a@1")
    await load(client, "a", version="2")
    assert await states(client, "a") == {"1": "loaded", "2": "serving"}


async def test_a_rollback_is_what_later_loads_on_demand_take(client: Client) -> None:
    await load(client, "a", version="1")
    chosen = (await encode(client, "a")).headers[FINGERPRINT]
    await client.delete("/models/a", headers=ADMIN)
    assert (await encode(client, "a")).headers[FINGERPRINT] == chosen


async def test_pinned_models_are_loaded_at_the_start_and_others_not_on_demand(
    repository: Path,
) -> None:
    async with serving_repository(repository, pinned=("a@1",), on_demand=False) as client:
        assert await states(client, "a") == {"1": "serving", "2": "available"}
        assert (await encode(client, "anything")).status_code == 200
        assert (await encode(client, "b")).headers["x-model"] == "a"
        await load(client, "b")
        assert (await encode(client, "b")).headers["x-model"] == "b"
        assert_problem(await encode(client, "anything"), 404, "there are: a, b")
