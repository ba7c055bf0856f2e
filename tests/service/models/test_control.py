"""Loads, swaps and unloads of models, their names and states, and which make room."""

from __future__ import annotations

import asyncio
import mmap
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from model.artifact.manifest import MANIFEST, Artifact
from service.artifacts.repository import Target
from service.errors import InsufficientMemory, ModelNotLoaded, UnknownModel
from service.models.loading import MEBIBYTE, MemoryBudget, resident_bytes
from service.models.served import ServedModel, Uses
from service.models.table import Models
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
from tests.service.scraped import samples

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
    await until(lambda: "a" in control_of(client).loads)
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


def served(name: str, version: str = "1") -> ServedModel:
    """Return a model without parts."""
    parts: dict[str, Any] = dict.fromkeys(("settings", "artifact", "inference", "health"), Mock())
    return ServedModel(name=name, version=version, **parts)


def test_the_current_version_answers_to_the_name_and_each_to_its_own() -> None:
    one, two = served("a", "1"), served("a", "2")
    models = Models([one])
    models.put(two, current=False)
    assert models.named("a") is one
    assert models.named("a@2") is two
    models.put(two)
    assert models.named("a") is two
    assert models.named("a@1") is one
    assert models.versions("a") == [two, one]
    models.remove(two)
    assert models.chosen(Target("a")) == Target("a", "2")
    assert models.find(Target("a")) is None


def test_a_model_of_the_same_version_replaces_the_old_one() -> None:
    old, new = served("a"), served("a")
    models = Models([old])
    models.put(new)
    models.remove(old)
    assert models.named("a") is new
    assert list(models) == [new]


def test_an_alias_is_another_name_until_it_is_removed() -> None:
    one, two = served("a", "1"), served("a", "2")
    models = Models([one, served("b")])
    models.put(two, current=False)
    models.alias("prod", Target("a", "2"))
    assert models.named("prod") is two
    assert models.is_named(two)
    models.alias("prod", Target("a"))
    assert models.named("prod") is one
    models.alias("prod", None)
    assert not models.is_named(two)
    with pytest.raises(UnknownModel, match="there are: a, b"):
        models.named("prod")


def test_a_model_on_demand_is_not_unknown() -> None:
    models = Models([served("a")])
    models.offer(["b"])
    for name, wanted in {"b": "b", "b@3": "b@3"}.items():
        with pytest.raises(ModelNotLoaded) as raised:
            models.named(name)
        assert raised.value.model == wanted
    with pytest.raises(UnknownModel, match="there are: a, b"):
        models.named("c")
    assert models.several


def test_an_alias_of_a_model_that_was_unloaded_loads_it_again() -> None:
    models = Models([model := served("a", "3")])
    models.offer(["a"])
    models.alias("prod", Target("a", "3"))
    models.remove(model)
    assert "prod" not in models.by_name
    with pytest.raises(ModelNotLoaded) as raised:
        models.named("prod")
    assert raised.value.model == "a@3"


def test_the_default_is_the_first_model_and_may_be_loaded_on_demand() -> None:
    models = Models([])
    models.offer(["b", "c"])
    with pytest.raises(ModelNotLoaded) as raised:
        models.named(None)
    assert raised.value.model == "b"
    models = Models([one := served("a")])
    assert models.named("anything") is one
    assert not models.several


async def test_a_loaded_version_has_a_fingerprint_and_a_size(client: Client) -> None:
    control = control_of(client)
    await load(client, "a", version="1")
    one, two = control.versions(await control.refresh(), "a")
    assert (one.version, one.state, two.version, two.state) == ("1", "serving", "2", "available")
    assert one.fingerprint == (await encode(client, "a")).headers[FINGERPRINT]
    assert one.memory_bytes
    assert two.memory_bytes is two.fingerprint is None


async def test_it_is_drained_after_the_last_request() -> None:
    uses = Uses()
    await uses.drained()
    uses.begin()
    uses.begin()
    waiting = asyncio.create_task(uses.drained())
    uses.end()
    await asyncio.sleep(0)
    assert not waiting.done()
    uses.end()
    uses.begin()  # a request that had the model before it was taken away
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    uses.end()
    await waiting


SETTINGS = Settings(memory_budget=100 * MEBIBYTE)


def artifact(size: int) -> Artifact:
    """Return an artifact of a predicted size in MiB."""
    return Mock(sha256=f"sha of {size}", size=size * MEBIBYTE)


def served_at(name: str, size: int, last_began: float) -> ServedModel:
    """Return a model without parts."""
    parts = Mock()
    model = ServedModel(name, SETTINGS, artifact(size), inference=parts, health=parts)
    model.uses.last_began = last_began
    return model


def budget() -> MemoryBudget:
    return MemoryBudget(lambda one, _: one.size)  # type: ignore[attr-defined]


def test_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    old, new, newer = (
        served_at("old", 30, 1),
        served_at("new", 30, 2),
        served_at("newer", 31, 3),
    )
    loaded = [newer, old, new]
    assert budget().to_evict(artifact(9), SETTINGS, loaded, loaded) == []
    assert budget().to_evict(artifact(10), SETTINGS, loaded, loaded) == [old]
    assert budget().to_evict(artifact(40), SETTINGS, loaded, loaded) == [old, new]
    assert budget().to_evict(artifact(40), SETTINGS, loaded, [newer, new]) == [new, newer]
    assert budget().to_evict(artifact(10_000), Settings(), loaded, loaded) == []


def test_what_cannot_fit_is_refused_with_the_sizes() -> None:
    kept, idle = served_at("kept", 60, 1), served_at("idle", 30, 2)
    message = (
        r"needs about 50 MiB, and 40 MiB of --memory-budget 100 MiB are free "
        r"\(in use or pinned: kept@1 60 MiB\)"
    )
    with pytest.raises(InsufficientMemory, match=message):
        budget().to_evict(artifact(50), SETTINGS, [kept, idle], [idle])


def test_the_measured_size_replaces_the_prediction() -> None:
    memory, model = budget(), artifact(50)
    assert memory.of(model, SETTINGS) == 50 * MEBIBYTE
    memory.measured(model, SETTINGS, 70 * MEBIBYTE)
    assert memory.of(model, SETTINGS) == 70 * MEBIBYTE
    memory.measured(model, SETTINGS, -5)
    assert memory.of(model, SETTINGS) == 25 * MEBIBYTE


def test_the_resident_memory_is_of_this_process() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE  # the heap may keep memory
    with mmap.mmap(-1, 64 * MEBIBYTE, flags):
        with_it = resident_bytes()
    assert 50 * MEBIBYTE < with_it - resident_bytes() < 80 * MEBIBYTE


async def of_model(client: Client, name: str) -> dict[str, float]:
    """Return the samples of a model, by their names and further labels."""
    return {
        " ".join([sample, *(value for key, value in labels if key != "model")]): value
        for (sample, labels), value in (await samples(client)).items()
        if ("model", name) in labels
    }


async def unload(client: Client, name: str) -> None:
    assert (await client.delete(f"/models/{name}", headers=ADMIN)).status_code == 200
    await until(lambda: not control_of(client).loader.draining)


async def test_an_unloaded_model_has_no_series_and_its_counters_continue(client: Client) -> None:
    await load(client, "b")
    reply = await encode(client, "b")
    first = await of_model(client, "b")
    assert first[f"headscope_model_versions {reply.headers[FINGERPRINT]} serving 1"] == 1
    assert first["headscope_tokens_total encode"] > 0
    assert first["headscope_queue_tokens_limit encode"] > 0
    await unload(client, "b")
    assert await of_model(client, "b") == {}
    assert await of_model(client, "b") == {}
    await load(client, "b")
    again = await of_model(client, "b")
    assert again == first


async def test_versions_of_a_name_share_its_series(client: Client) -> None:
    await load(client, "a", version="1")
    one = await of_model(client, "a")
    await load(client, "a", version="2", current=False)
    both = await of_model(client, "a")
    limit = "headscope_queue_tokens_limit encode"
    assert both[limit] == 2 * one[limit]
    versions = [name.split()[-2:] for name in both if name.startswith("headscope_model_versions")]
    assert sorted(versions) == [["loaded", "2"], ["serving", "1"]]
    await client.delete("/models/a?version=2", headers=ADMIN)
    await until(lambda: not control_of(client).loader.draining)
    assert await of_model(client, "a") == one
