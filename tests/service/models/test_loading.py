"""Loads within the memory budget, running and exporting, joined and released."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import shutil
import subprocess
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import MANIFEST, Artifact, load_artifact
from service.artifacts.footprint import footprint
from service.artifacts.opening import open_artifact
from service.artifacts.repository import Target
from service.models.control import FIRST_LOAD_SECONDS
from service.models.loading import RunningLoad
from service.settings import Settings
from service.settings.model_group import ModelTable
from tests.service.harness import Client, assert_problem, until
from tests.service.repositories import (
    ADMIN,
    FINGERPRINT,
    add,
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
    monkeypatch.setattr("service.models.control.FULL_SECONDS", 0)
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


async def test_two_loads_at_once_and_an_unload_of_what_loads(
    client: Client, gate: threading.Event
) -> None:
    gate.clear()  # the measured batches of a start wait
    first = asyncio.create_task(load(client, "a", version="1"))
    await until(lambda: "a" in control_of(client).loads)
    same = asyncio.create_task(load(client, "a", version="1"))
    assert_problem(await load(client, "a", version="2"), 409, "a@1 has been loading")
    assert_problem(await client.delete("/models/a", headers=ADMIN), 409, "a@1 has been loading")
    assert (await states(client, "a"))["1"] == "loading"
    late = await encode(client, "a", **{"x-request-timeout-ms": "50"})
    assert_problem(late, 503, "a is still being loaded", "Unhealthy")
    gate.set()
    replies = await asyncio.gather(first, same)
    assert [reply.json()["loaded"]["version"] for reply in replies] == ["1", "1"]


def test_the_time_that_is_left_follows_the_load_before() -> None:
    load = RunningLoad(Target("a"), current=True, may_export=True)
    assert load.seconds_left(40) == 40
    load.opens += 120
    assert load.seconds_left(40) == 160, "the export comes before it"
    load.began -= 800
    assert load.seconds_left(40) == 200, "it takes longer than the load before"
    load.opens -= 300
    load.began += 799
    assert load.seconds_left(40) == 1


class SlowExport:
    """Stand-in for `headscope export`, which waits until the test opens its gate."""

    def __init__(self, artifact: Artifact, cache: Path) -> None:
        self.gate = threading.Event()
        self.started: list[str] = []
        """Checkpoint of each export that has begun."""
        self.most_at_once = 0
        self.code = 0
        self._artifact, self._cache, self._running = artifact, cache, 0

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        checkpoint = command[command.index("--model") + 1]
        self.started.append(checkpoint)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        assert self.gate.wait(60)
        self._running -= 1
        if self.code:
            return subprocess.CompletedProcess(command, self.code, "", "too little memory")
        found = open_artifact(Settings(model=checkpoint, cache_folder=self._cache))
        return subprocess.CompletedProcess(command, 0, f"{found.folder}\n", "")

    def export(self, _: Path, out: Path, *__: object) -> Artifact:
        shutil.copytree(self._artifact.folder, out)
        return load_artifact(out)


@pytest.fixture
def checkpoints(tmp_path: Path, tiny_artifact: Artifact, tiny_checkpoint: Path) -> Path:
    """Return a repository of an artifact `done` and of checkpoints `raw` and `other`."""
    folder = tmp_path / "models"
    add(folder, "done", tiny_artifact)
    for name in ("raw", "other"):
        shutil.copytree(tiny_checkpoint, folder / name)
    return folder


@pytest.fixture
def exporting(
    tmp_path: Path, tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> SlowExport:
    monkeypatch.setenv("HEADSCOPE_CACHE_FOLDER", str(tmp_path / "cache"))
    slow = SlowExport(tiny_artifact, tmp_path / "cache")
    monkeypatch.setattr("service.artifacts.opening.subprocess.run", slow)
    monkeypatch.setattr("model.export.exporter.export", slow.export)
    return slow


async def test_a_finished_artifact_is_loaded_while_a_checkpoint_is_exported(
    checkpoints: Path, exporting: SlowExport
) -> None:
    async with serving_repository(checkpoints) as client:
        exported = asyncio.create_task(encode(client, "raw"))
        await until(lambda: exporting.started)
        finished = await encode(client, "done", **{"x-request-timeout-ms": "20000"})
        exporting.gate.set()
        assert finished.status_code == 200
        assert (await exported).status_code == 200


async def test_two_models_of_one_checkpoint_are_exported_once_and_others_in_turn(
    checkpoints: Path, exporting: SlowExport
) -> None:
    tables = {
        "first": ModelTable(source=str(checkpoints / "other"), load="on-demand"),
        "second": ModelTable(source=str(checkpoints / "other"), load="on-demand"),
    }
    async with serving_repository(checkpoints, tables=tables) as client:
        names = ("first", "second", "raw")
        replies = [asyncio.create_task(encode(client, name)) for name in names]
        await until(lambda: exporting.started and len(control_of(client).loads) == 3)
        exporting.gate.set()
        assert {(await reply).status_code for reply in replies} == {200}
    assert sorted(exporting.started) == [str(checkpoints / name) for name in ("other", "raw")]
    assert exporting.most_at_once == 1


async def test_an_export_of_the_cache_is_opened_while_another_checkpoint_is_exported(
    checkpoints: Path, exporting: SlowExport
) -> None:
    exporting.gate.set()
    async with serving_repository(checkpoints) as client:
        assert (await encode(client, "other")).status_code == 200
    exporting.gate.clear()
    async with serving_repository(checkpoints) as client:
        exported = asyncio.create_task(encode(client, "raw"))
        await until(lambda: len(exporting.started) == 2)
        assert (await encode(client, "other")).status_code == 200
        exporting.gate.set()
        assert (await exported).status_code == 200
    assert len(exporting.started) == 2


async def test_requests_retry_when_the_export_is_expected_to_end(
    checkpoints: Path, exporting: SlowExport
) -> None:
    async with serving_repository(checkpoints) as client:
        seconds = {}
        for name in ("raw", "other"):
            reply = await encode(client, name, **{"x-request-timeout-ms": "500"})
            assert_problem(reply, 503, f"{name} is still being loaded", "Unhealthy")
            seconds[name] = int(reply.headers["retry-after"])
        exporting.gate.set()
        assert (await encode(client, "other")).status_code == 200
    assert 60 < seconds["raw"] <= 60 + FIRST_LOAD_SECONDS
    assert 120 < seconds["other"] <= 120 + FIRST_LOAD_SECONDS, "it waits for the first"


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"api_keys": "key"}, 403),
        ({"api_keys": "key", "export_on_demand": "allow"}, 200),
        ({"export_on_demand": "refuse"}, 403),
        ({}, 200),
    ],
)
async def test_who_may_start_an_export(
    checkpoints: Path, exporting: SlowExport, settings: dict[str, str], status: int
) -> None:
    exporting.gate.set()
    key = {"authorization": "Bearer key"}
    async with serving_repository(checkpoints, **settings) as client:
        for _ in range(2):
            reply = await encode(client, "raw", **key)
            assert reply.status_code == status
        assert (await encode(client, "done", **key)).status_code == 200
        if status == 200:
            return
        assert_problem(reply, 403, "the model is not exported yet")
        assert "load the model with an admin key" in reply.json()["detail"]
        assert str(checkpoints) not in reply.text
        assert exporting.started == []
        failures = control_of(client).loader.metrics.model_load_failures
        assert failures.labels("invalid")._value.get() == 0
        assert (await load(client, "raw")).status_code == 200
        assert (await encode(client, "raw", **key)).status_code == 200
    assert len(exporting.started) == 1


async def test_a_failed_export_is_a_failed_load(checkpoints: Path, exporting: SlowExport) -> None:
    exporting.gate.set()
    exporting.code = 1
    async with serving_repository(checkpoints) as client:
        for _ in range(2):
            assert_problem(await encode(client, "raw"), 503, "raw cannot be loaded", "Unhealthy")
        assert "too little memory" in control_of(client).failure(Target("raw"))
    assert len(exporting.started) == 1
