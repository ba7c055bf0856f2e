"""Agreement of two workers, whose controls run in one process here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model.artifact.manifest import MANIFEST, Artifact
from service.app import create_app
from service.artifacts.repository import Target
from service.errors import ModelNotLoadable, ModelNotLoaded
from service.health.peers import Peers
from service.models import workers
from service.models.control import ModelControl
from service.models.state import state_of
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.service.harness import until
from tests.service.repositories import add

pytestmark = pytest.mark.anyio


@pytest.fixture
def repository(tmp_path: Path, tiny_artifact: Artifact) -> Path:
    for place in ("a/1", "a/2"):
        add(tmp_path / "models", place, tiny_artifact)
    return tmp_path / "models"


@pytest.fixture(autouse=True)
def own_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the workers' metrics in this process."""
    monkeypatch.setattr("service.models.build.Metrics", lambda _: Metrics())


@contextlib.asynccontextmanager
async def worker(repository: Path, index: int) -> AsyncIterator[ModelControl]:
    """Yield the control of a worker of two."""
    settings = Settings(engine="fake", models=repository, admin_keys="admin", workers=2)
    app = create_app(settings, [], peers=Peers(repository.parent, index, 2))
    async with app.router.lifespan_context(app):
        yield state_of(app).control


def current(control: ModelControl) -> str | None:
    """Return the version that serves requests for the name."""
    model = control.models.find(Target("a"))
    return model and model.version


async def test_all_switch_and_a_restarted_worker_follows(repository: Path) -> None:
    async with worker(repository, 0) as first:
        async with worker(repository, 1) as second:
            for version in "12":
                await first.load(Target("a", version))
                await until(lambda version=version: current(second) == version)  # type: ignore[misc]
            await second.load(Target("a", "1"), current=False)
            await until(lambda: first.models.find(Target("a", "1")))
            second.alias("prod", [Target("a", "1", 0.5), Target("a", "2", 0.5)])
            await until(lambda: "prod" in first.models.aliases)
            first.unload(Target("a", "1"))
            await until(lambda: not second.models.find(Target("a", "1")))
        async with worker(repository, 1) as again:
            assert current(again) == "2"  # before it gets a connection
            assert "prod" in again.models.aliases
            first.unload(Target("a"))
            await until(lambda: current(again) is None)


async def test_what_requests_load_after_an_unload_stays_loaded(repository: Path) -> None:
    async with worker(repository, 0) as first, worker(repository, 1) as second:
        await first.load(Target("a", "1"))
        await until(lambda: current(second) == "1")
        first.unload(Target("a"))
        await until(lambda: current(second) is None)
        for control in (first, second):
            await control.obtain(ModelNotLoaded("a"), time.monotonic() + 60)
        second.alias("prod", [Target("a")])  # another change of the plan
        await until(lambda: "prod" in first.models.aliases)
        assert (current(first), current(second)) == ("1", "1")
        first.unload(Target("a"))
        await until(lambda: current(second) is None)


async def test_what_another_worker_has_loaded_on_demand_is_unloaded(repository: Path) -> None:
    async with worker(repository, 0) as first, worker(repository, 1) as second:
        await second.obtain(ModelNotLoaded("a"), time.monotonic() + 60)
        assert first.unload(Target("a")) == []
        await until(lambda: current(second) is None)


async def test_none_switches_if_one_cannot(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "UNUSED_SECONDS", 0.0)
    async with worker(repository, 0) as first, worker(repository, 1) as second:
        await first.load(Target("a", "1"))
        await until(lambda: current(second) == "1")
        manifest = repository / "a" / "2" / MANIFEST
        content = manifest.read_bytes()
        prepare = second.prepare

        async def damaged(target: Target) -> object:
            manifest.write_bytes(b"{}")
            return await prepare(target)

        monkeypatch.setattr(second, "prepare", damaged)
        with pytest.raises(ModelNotLoadable, match="worker 1: a@2 cannot be loaded"):
            await first.load(Target("a", "2"))
        assert (current(first), current(second)) == ("1", "1")
        assert [model.version for model in first.models] == ["1"]

        async def changed(target: Target) -> object:
            manifest.write_bytes(content + b"\n")
            return await prepare(target)

        manifest.write_bytes(content)
        monkeypatch.setattr(second, "prepare", changed)
        with pytest.raises(ModelNotLoadable, match="worker 1: a@2 has changed"):
            await first.load(Target("a", "2"))
        assert (current(first), current(second)) == ("1", "1")


async def test_what_was_prepared_in_vain_is_released(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the worker that had the command is killed before it writes the plan."""
    async with worker(repository, 0) as first, worker(repository, 1) as second:
        model = await first.prepare(Target("a", "2"))
        await first.workers.prepare(model)
        assert [str(one) for one in second.loader.in_memory] == ["a@2"]
        await first.workers.prepare(model)  # once more, as after a load that failed elsewhere
        await until(lambda: len(second.loader.in_memory) == 1)
        assert current(second) is None
        monkeypatch.setattr(workers, "UNUSED_SECONDS", 0.0)
        await until(lambda: not second.loader.in_memory)
