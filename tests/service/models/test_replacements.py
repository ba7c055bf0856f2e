"""Models that a process starts and unloads for other settings, beside a repository."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.artifacts.repository import Target
from service.errors import ModelNotLoaded
from tests.service.harness import until
from tests.service.models.reloading import HEAD, Configured, reload, state
from tests.service.repositories import add, encode, states

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(tmp_path: Path, tiny_artifact: Artifact) -> Configured:
    """Return a configuration beside a repository of `a` in two versions, and of `b`."""
    for place in ("models/a/1", "models/a/2", "models/b"):
        add(tmp_path, place, tiny_artifact)
    return Configured(tmp_path, tiny_artifact)


def write(config: Configured, *lines: str) -> None:
    top = f'{HEAD}models = "{config.folder / "models"}"'
    config.path.write_text("\n".join([top, *lines]), encoding="utf-8")


async def test_versions_of_a_repository(config: Configured) -> None:
    write(config, "model.a = { version = '2', load = 'on-demand' }")
    async with config.serving() as client:
        await encode(client, "a")
        assert await states(client, "a") == {"1": "available", "2": "serving"}
        write(config, "model.a = { version = '1', load = 'on-demand' }")
        assert (await reload(client)).json()["models"]["loaded"] == ["a@1"]
        await until(lambda: not state(client).control.loader.draining)
        assert await states(client, "a") == {"1": "serving", "2": "available"}
        state(client).control.unload(Target("a"))
        write(config, "model.a = { version = '2', load = 'on-demand' }")
        assert (await reload(client)).json()["models"]["loaded"] == []
        await encode(client, "a")
        assert (await states(client, "a"))["2"] == "serving"
        write(config, "pinned = ['b', 'a@1']")
        assert (await reload(client)).json()["models"]["loaded"] == ["b@1", "a@1"]
        assert state(client).control.setup.pinned == {"a", "b"}
        write(config, "[model.a]", "version = '1'", "[model.b]")
        unchanged = {"loaded": [], "replaced": [], "unloaded": []}
        assert (await reload(client)).json()["models"] == unchanged
        shutil.rmtree(config.folder / "models" / "b")
        write(config, "on-demand = false")
        assert (await reload(client)).json()["models"]["unloaded"] == []
        state(client).control.unload(Target("b"))
        assert (await encode(client, "b")).headers["x-model"] == "a"  # the only one


async def test_what_a_request_loads_meanwhile_has_the_new_settings(config: Configured) -> None:
    write(config, "max-length = 9")
    async with config.serving() as client:
        control, setup = state(client).control, state(client).control.setup
        start = control.loader.start

        async def started(*arguments: object) -> object:
            model = await start(*arguments)  # type: ignore[arg-type]
            if control.setup is setup:  # the reload ends while the request's load runs
                control.loader.start = start  # type: ignore[method-assign]
                write(config, "max-length = 7")
                assert (await reload(client)).status_code == 200
            return model

        control.loader.start = started  # type: ignore[assignment, method-assign]
        await control.obtain(ModelNotLoaded("b"), time.monotonic() + 60)
        assert control.models.named("b").settings.max_length == 7
        await until(lambda: len(control.loader.in_memory) == 1)


async def test_what_a_request_loads_while_other_workers_prepare_is_replaced(
    config: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config, "max-length = 9")
    async with config.serving() as client:

        async def others(_: int) -> None:
            assert (await encode(client, "b")).status_code == 200

        monkeypatch.setattr(state(client).control.workers, "prepare_config", others)
        write(config, "max-length = 7")
        assert (await reload(client)).json()["models"]["replaced"] == ["b@1"]
        assert state(client).models.named("b").settings.max_length == 7
