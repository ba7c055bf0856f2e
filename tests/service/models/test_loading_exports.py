"""Exports that loads need, beside loads of finished artifacts; a stand-in exports slowly."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact, load_artifact
from model.export.exporter import Exported
from service.artifacts.opening import open_artifact
from service.artifacts.repository import Target
from service.models.running_loads import FIRST_LOAD_SECONDS
from service.settings import Settings
from service.settings.model_group import ModelTable
from tests.service.harness import assert_problem, until
from tests.service.repositories import add, control_of, encode, load, serving_repository

pytestmark = pytest.mark.anyio


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

    def export(self, _: Path, out: Path, *__: object) -> Exported:
        shutil.copytree(self._artifact.folder, out)
        return Exported(load_artifact(out), self._artifact.manifest.verification)


@pytest.fixture
def repository(tmp_path: Path, tiny_artifact: Artifact, tiny_checkpoint: Path) -> Path:
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
    repository: Path, exporting: SlowExport
) -> None:
    async with serving_repository(repository) as client:
        exported = asyncio.create_task(encode(client, "raw"))
        await until(lambda: exporting.started)
        finished = await encode(client, "done", **{"x-request-timeout-ms": "20000"})
        exporting.gate.set()
        assert finished.status_code == 200
        assert (await exported).status_code == 200


async def test_two_models_of_one_checkpoint_are_exported_once_and_others_in_turn(
    repository: Path, exporting: SlowExport
) -> None:
    tables = {
        "first": ModelTable(source=str(repository / "other"), load="on-demand"),
        "second": ModelTable(source=str(repository / "other"), load="on-demand"),
    }
    async with serving_repository(repository, tables=tables) as client:
        names = ("first", "second", "raw")
        replies = [asyncio.create_task(encode(client, name)) for name in names]
        await until(lambda: exporting.started and len(control_of(client).loads.names) == 3)
        exporting.gate.set()
        assert {(await reply).status_code for reply in replies} == {200}
    assert sorted(exporting.started) == [str(repository / name) for name in ("other", "raw")]
    assert exporting.most_at_once == 1


async def test_an_export_of_the_cache_is_opened_while_another_checkpoint_is_exported(
    repository: Path, exporting: SlowExport
) -> None:
    exporting.gate.set()
    async with serving_repository(repository) as client:
        assert (await encode(client, "other")).status_code == 200
    exporting.gate.clear()
    async with serving_repository(repository) as client:
        exported = asyncio.create_task(encode(client, "raw"))
        await until(lambda: len(exporting.started) == 2)
        assert (await encode(client, "other")).status_code == 200
        exporting.gate.set()
        assert (await exported).status_code == 200
    assert len(exporting.started) == 2


async def test_requests_retry_when_the_export_is_expected_to_end(
    repository: Path, exporting: SlowExport
) -> None:
    async with serving_repository(repository) as client:
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
    repository: Path, exporting: SlowExport, settings: dict[str, str], status: int
) -> None:
    exporting.gate.set()
    key = {"authorization": "Bearer key"}
    async with serving_repository(repository, **settings) as client:
        for _ in range(2):
            reply = await encode(client, "raw", **key)
            assert reply.status_code == status
        assert (await encode(client, "done", **key)).status_code == 200
        if status == 200:
            return
        assert_problem(reply, 403, "the model is not exported yet")
        assert "load the model with an admin key" in reply.json()["detail"]
        assert str(repository) not in reply.text
        assert exporting.started == []
        failures = control_of(client).loader.metrics.model_load_failures
        assert failures.labels("invalid")._value.get() == 0
        assert (await load(client, "raw")).status_code == 200
        assert (await encode(client, "raw", **key)).status_code == 200
    assert len(exporting.started) == 1


async def test_a_failed_export_is_a_failed_load(repository: Path, exporting: SlowExport) -> None:
    exporting.gate.set()
    exporting.code = 1
    async with serving_repository(repository) as client:
        for _ in range(2):
            assert_problem(await encode(client, "raw"), 503, "raw cannot be loaded", "Unhealthy")
        assert "too little memory" in control_of(client).failure(Target("raw"))
    assert len(exporting.started) == 1
