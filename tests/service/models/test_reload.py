"""Reload of the file of settings: all or nothing, in all workers, without a lost request."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model.artifact.manifest import MANIFEST, Artifact, load_artifact
from service.artifacts.footprint import footprint
from service.artifacts.repository import Target
from service.health.peers import Peers
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.service.harness import Client, assert_problem, until
from tests.service.logged import logged
from tests.service.models.reloading import Configured, reload, reload_of, state
from tests.service.repositories import ADMIN, FINGERPRINT, encode

pytestmark = pytest.mark.anyio


@pytest.fixture
def config(tmp_path: Path, tiny_artifact: Artifact) -> Configured:
    return Configured(tmp_path, tiny_artifact)


async def test_changes_apply_at_once_and_what_needs_a_restart_is_named(config: Configured) -> None:
    config.write("a=one", "b=two, max-length = 9", top="port = 1\nmax-length = 8")
    async with config.serving(auto_truncate=False) as client:
        before = (await encode(client, "a")).headers[FINGERPRINT]
        config.write(
            'b=two, max-length = 9, prompts = { q = "a " }',
            "c=three",
            "a=one",
            top="port = 2\nmax-length = 8\nmax-response-bytes = 7000\nauto-truncate = true",
            alias="x = 'c', y = { a = 0.5, b = 0.5 }",
        )
        reply = (await reload(client)).json()
        assert reply["applied"] == [
            *("alias", "model.b: prompts", "model.c: added", "alias.y", "model: order"),
            "max-response-bytes",
        ]
        assert reply["restart"] == ["port"]
        assert reply["overridden"] == ["auto-truncate"]
        assert reply["unchanged"] == ["engine", "admin-keys", "max-length", "model.a"]
        expected = {"loaded": ["c@1"], "replaced": ["b@1"], "unloaded": []}
        assert reply["models"] == expected
        assert state(client).settings.max_response_bytes == 7000
        assert state(client).settings.port == 1
        assert (await encode(client, "a")).headers[FINGERPRINT] == before
        assert (await encode(client, "x")).headers["x-model"] == "c"
        assert state(client).models.default.name == "b"
        assert (await client.get("/info", params={"model": "b"})).json()["prompts"] == ["q"]
        config.write("a=two, max-length = 7")
        reply = (await reload(client)).json()
        assert reply["models"] == {"loaded": [], "replaced": ["a@1"], "unloaded": ["b@1", "c@1"]}
        assert (await encode(client, "a")).headers[FINGERPRINT] != before
        assert (await client.get("/info", params={"model": "a"})).json()["max_input_length"] == 7
        assert not state(client).models.aliases


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("b=two, max-length = 'x'", "line 6, column"),
        ("b=nowhere", "is not a folder"),
        ("b=three", "b@1 cannot be loaded"),
        ("b=two, max-length = 9999", "b@1 cannot be loaded: --max-length 9999"),
    ],
)
async def test_a_mistake_changes_nothing(config: Configured, model: str, says: str) -> None:
    config.write("a=one", "b=two", top="api-keys = 'c4n4ry'")
    async with config.serving() as client:
        (config.folder / "three" / MANIFEST).write_text("{}", encoding="utf-8")
        config.write("a=two", model, top="max-response-bytes = 7000\napi-keys = 'c4n4ry'")
        before, loaded = state(client).settings, [*state(client).models]
        reply = await reload(client)
        error_type = "Backend" if "cannot be loaded" in says else "Validation"
        problem = assert_problem(reply, 422, says, error_type)
        assert "c4n4ry" not in str(problem)
        assert state(client).settings is before
        assert [*state(client).models] == loaded
        assert not state(client).control.failure(Target("b", "1"))
        await until(lambda: len(state(client).control.loader.in_memory) == 2)
        config.path.write_text("= x c4n4ry", encoding="utf-8")
        assert "c4n4ry" not in str(assert_problem(await reload(client), 422, "line 1, column 1"))


async def test_a_file_that_is_being_written_takes_no_keys_away(config: Configured) -> None:
    config.write("a=one", top="api-keys = 'user'")
    async with config.serving() as client:
        config.path.write_text("# empty until the editor has written it\n", encoding="utf-8")
        assert_problem(await reload(client), 422, "has no setting: write it, and reload again")
        config.write("a=one")
        assert_problem(await reload(client), 422, "everyone could use the service")
        assert (await encode(client, "a")).status_code == 401


async def test_what_exceeds_the_memory_budget_of_the_file_changes_nothing(
    config: Configured, tiny_artifact: Artifact
) -> None:
    size = footprint(tiny_artifact, Settings(engine="fake")).total
    config.write("a=one")
    async with config.serving() as client:
        before, loaded = state(client).settings, [*state(client).models]
        models = ("a=one", "b=two", "c=three")
        config.write(*models, top=f"memory-budget = {size * 11 // 5}", alias="x = 'b'")
        assert_problem(await reload(client), 507, "the model needs about", "Backend")
        assert state(client).settings is before
        assert [*state(client).models] == loaded
        assert not state(client).models.aliases
        await until(lambda: state(client).control.loader.in_memory == loaded)
        config.write(*models, top=f"memory-budget = {size * 100}")
        assert (await reload(client)).json()["models"]["loaded"] == ["b@1", "c@1"]


async def test_requests_during_a_reload_and_a_second_reload(
    config: Configured, gate: threading.Event
) -> None:
    config.write("a=one")
    async with config.serving() as client:
        old = (await encode(client, "a")).headers[FINGERPRINT]
        gate.clear()
        running = [asyncio.create_task(encode(client, "a")) for _ in range(4)]
        await until(lambda: state(client).models.named("a").uses.count == 4)
        config.write("a=two")
        reloading = asyncio.create_task(reload(client))
        await until(lambda: reload_of(client)._runs)
        assert_problem(await reload(client), 409, "is being reloaded: wait")
        gate.set()
        assert (await reloading).status_code == 200
        replies = await asyncio.gather(*running)
        assert {reply.headers[FINGERPRINT] for reply in replies} == {old}
        assert (await encode(client, "a")).headers[FINGERPRINT] != old
        counted = state(client).metrics.service.config_reloads
        assert counted.labels("refused")._value.get() == 1
        assert counted.labels("applied")._value.get() == 1


async def test_keys_change(config: Configured) -> None:
    config.write("a=one", top="api-keys = 'old'")
    async with config.serving() as client:
        assert (await encode(client, "a")).status_code == 401
        config.write("a=one", top="api-keys = 'new'")
        assert (await reload(client)).json()["applied"] == ["api-keys"]
        for key, status in {"old": 401, "new": 200}.items():
            reply = await encode(client, "a", authorization=f"Bearer {key}")
            assert reply.status_code == status
        config.write("a=one", top=f"keys-file = '{config.path}'")
        assert_problem(await reload(client), 422, "keys file")
        config.path.write_text(config.path.read_text().replace("admin", "other"))
        assert_problem(await client.post("/config/reload"), 401)


async def test_what_commands_have_changed_stays_unless_the_file_changes_it(
    config: Configured,
) -> None:
    config.write("a=one", "b=two", "c=three", alias="x = 'a'")
    async with config.serving() as client:
        await client.delete("/models/b", headers=ADMIN)
        for alias, model in (("x", "c"), ("y", "a")):
            body = {"targets": [{"model": model}]}
            await client.put(f"/models/{alias}", json=body, headers=ADMIN)
        config.write("a=one, max-length = 9", "b=two", "c=three", alias="x = 'a'")
        reply = (await reload(client)).json()
        assert reply["models"] == {"loaded": [], "replaced": ["a@1"], "unloaded": []}
        assert {*state(client).models.aliases} == {"x", "y"}
        assert (await encode(client, "x")).headers["x-model"] == "c"
        config.write("a=one, max-length = 9, load = 'off'", "b=two, max-length = 5", "c=three")
        assert (await reload(client)).json()["models"]["unloaded"] == ["a@1"]
        assert_problem(await encode(client, "a"), 404, "there are: c, b")
        assert (await encode(client, "b")).status_code == 200
        assert (await client.get("/info", params={"model": "b"})).json()["max_input_length"] == 5


async def test_a_service_without_a_file(config: Configured) -> None:
    config.write("a=one")
    async with config.serving() as client:
        state(client).settings = state(client).settings.model_copy(update={"given": {}})
        with logged() as log:
            await reload_of(client).by_signal()
        assert "started without a file of settings" in log.text
        assert_problem(await reload(client), 422, "start it with --config")


@contextlib.asynccontextmanager
async def two(config: Configured) -> AsyncIterator[tuple[Client, Client]]:
    peers = [Peers(config.folder, index, 2) for index in range(2)]
    async with (
        config.serving(peers[0], workers=2) as first,
        config.serving(peers[1], workers=2) as second,
    ):
        yield first, second


async def test_all_workers_apply_or_none(
    config: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.models.build.Metrics", lambda _: Metrics())
    config.write("a=one")
    async with two(config) as (first, second):
        config.write("a=two", "b=one", alias="x = 'a'")
        second_control = state(second).control

        async def damaged(*_: object) -> object:
            raise OSError("no room")

        with monkeypatch.context() as patched:
            patched.setattr(second_control.loader, "start", damaged)
            assert_problem(await reload(first), 422, "worker 1: ")
        for client in (first, second):
            assert [str(model) for model in state(client).models] == ["a@1"]
            assert not state(client).models.aliases
        state(first).control.alias("x", [Target("a")])
        await until(lambda: "x" in state(second).models.aliases)
        config.write("a=two", "b=one", alias="x = 'b'")
        assert (await reload(first)).status_code == 200
        await until(lambda: state(second).models.by_name.get("b") is not None)
        for client in (first, second):
            assert (await encode(client, "x")).headers["x-model"] == "b"
        settings = state(second).settings
        state(first).control.alias("z", [Target("a")])  # later changes of the plan
        state(second).control.alias("y", [Target("a")])
        await until(lambda: "y" in state(first).models.aliases)
        await until(lambda: "z" in state(second).models.aliases)
        assert state(second).settings is settings
        assert (await encode(first, "x")).headers["x-model"] == "b"


async def test_a_restarted_worker_has_the_models_of_the_last_reload(
    config: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.models.build.Metrics", lambda _: Metrics())
    config.write("a=one", "b=two")
    peers = [Peers(config.folder, index, 2) for index in range(2)]
    async with config.serving(peers[0], workers=2) as first:
        async with config.serving(peers[1], workers=2):
            await first.delete("/models/b", headers=ADMIN)
            for models in (["a=one"], ["a=one", "b=two"]):
                config.write(*models)
                assert (await reload(first)).status_code == 200
        async with config.serving(peers[1], workers=2) as restarted:
            for client in (first, restarted):
                assert {str(model) for model in state(client).models} == {"a@1", "b@1"}


async def test_what_was_prepared_before_a_reload_is_started_again(
    config: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.models.build.Metrics", lambda _: Metrics())
    config.write("a=one", "b=two, load = 'on-demand'")
    async with two(config) as (first, second):
        sha256 = load_artifact(config.folder / "two").sha256
        assert await state(second).control.workers.answer_prepare(f"{sha256} b@1") == ""
        config.write("a=one", "b=two, load = 'on-demand', max-length = 7")
        assert (await reload(first)).status_code == 200
        state(first).control.workers.write_versions("b", ["1"])
        await until(lambda: "b" in state(second).models.by_name)
        assert state(second).models.named("b").settings.max_length == 7
