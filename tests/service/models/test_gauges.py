"""Gauges of models that come and go."""

from __future__ import annotations

import pytest

from tests.service.harness import Client, until
from tests.service.repositories import ADMIN, FINGERPRINT, control_of, encode, load
from tests.service.scraped import samples

pytestmark = pytest.mark.anyio


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
