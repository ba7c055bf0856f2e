"""Which models make room for another, and gauges of models that come and go."""

from __future__ import annotations

import mmap
from typing import Any
from unittest.mock import Mock

import pytest

from model.artifact.manifest import Artifact
from service.errors import InsufficientMemory
from service.models.memory import MEBIBYTE, MemoryBudget, resident_bytes
from service.models.served import ServedModel
from service.settings import Settings
from tests.service.harness import Client, until
from tests.service.repositories import ADMIN, FINGERPRINT, control_of, encode, load
from tests.service.scraped import samples

pytestmark = pytest.mark.anyio


SETTINGS = Settings(memory_budget=100 * MEBIBYTE)


def artifact(size: int) -> Artifact:
    """Return an artifact of a predicted size in MiB."""
    return Mock(sha256=f"sha of {size}", size=size * MEBIBYTE)


def served(name: str, size: int, last_began: float) -> ServedModel:
    """Return a model without parts."""
    parts: dict[str, Any] = dict.fromkeys(
        ("inference", "readiness", "live_verification", "watch"), Mock()
    )
    model = ServedModel(name=name, settings=SETTINGS, artifact=artifact(size), **parts)
    model.uses.last_began = last_began
    return model


def budget() -> MemoryBudget:
    return MemoryBudget(lambda one, _: one.size)  # type: ignore[attr-defined]


def test_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    old, new, newer = served("old", 30, 1), served("new", 30, 2), served("newer", 31, 3)
    loaded = [newer, old, new]
    assert budget().to_evict(artifact(9), SETTINGS, loaded, loaded) == []
    assert budget().to_evict(artifact(10), SETTINGS, loaded, loaded) == [old]
    assert budget().to_evict(artifact(40), SETTINGS, loaded, loaded) == [old, new]
    assert budget().to_evict(artifact(40), SETTINGS, loaded, [newer, new]) == [new, newer]
    assert budget().to_evict(artifact(10_000), Settings(), loaded, loaded) == []


def test_what_cannot_fit_is_refused_with_the_sizes() -> None:
    kept, idle = served("kept", 60, 1), served("idle", 30, 2)
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
