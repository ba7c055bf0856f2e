"""Start of models within the memory budget, and their release after the last request."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import threading
import weakref
from pathlib import Path

import pytest

from model.artifact.manifest import MANIFEST, load_artifact
from service.artifacts.footprint import footprint
from service.settings import Settings
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


async def test_an_unloaded_model_is_released_after_its_last_request(
    client: Client, gate: threading.Event
) -> None:
    await load(client, "a")
    released = weakref.ref(control_of(client).models.named("a").inference)
    gate.clear()
    running = asyncio.create_task(encode(client, "a"))
    await until(lambda: control_of(client).models.named("a").uses.count == 1)
    reply = await client.delete("/models/a", headers=ADMIN)
    assert reply.json() == {"name": "a", "unloaded": ["2"]}
    assert await states(client, "a") == {"1": "available", "2": "draining"}
    gate.set()
    assert (await running).status_code == 200
    del running

    def gone() -> bool:
        gc.collect()
        return released() is None

    await until(gone)
    assert_problem(await client.delete("/models/a", headers=ADMIN), 404, "no such model")


async def test_a_changed_folder_is_loaded_anew_and_an_unchanged_one_is_not(
    client: Client, repository: Path
) -> None:
    await load(client, "b")
    before = (await encode(client, "b")).headers[FINGERPRINT]
    assert (await load(client, "b")).json()["loaded"]["seconds"] == 0
    manifest = json.loads((repository / "b" / MANIFEST).read_text(encoding="utf-8"))
    (repository / "b" / MANIFEST).write_text(json.dumps(manifest | {"model": "changed"}))
    assert (await load(client, "b")).json()["loaded"]["seconds"] > 0
    assert (await encode(client, "b")).headers[FINGERPRINT] != before


async def test_the_least_recently_used_makes_room(
    repository: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = footprint(load_artifact(repository / "b"), Settings()).total
    resident = itertools.count(0, size)  # the process grows by what was predicted
    monkeypatch.setattr("service.models.loading.resident_bytes", lambda: next(resident))
    monkeypatch.setattr("service.models.failures.FULL_SECONDS", 0)
    async with serving_repository(repository, memory_budget=int(1.2 * size)) as client:
        for name in ("a", "b", "a"):
            assert (await encode(client, name)).status_code == 200
            assert [model.name for model in control_of(client).models] == [name]
        counts = control_of(client).loader.metrics
        assert (counts.model_loads._value.get(), counts.model_evictions._value.get()) == (3, 2)
        gate.clear()
        running = asyncio.create_task(encode(client, "a"))
        await until(lambda: control_of(client).models.named("a").uses.count == 1)
        reply = await encode(client, "b")
        assert reply.status_code == 507
        assert "the models in use leave too little" in reply.json()["detail"]
        gate.set()
        assert (await running).status_code == 200
