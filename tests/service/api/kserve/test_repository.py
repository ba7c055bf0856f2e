"""KServe's model repository extension."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from tests.service.harness import Client
from tests.service.repositories import ADMIN, add, serving_repository

pytestmark = pytest.mark.anyio


async def index(client: Client, **body: object) -> dict[str, str]:
    """Return the state of each model of one version."""
    reply = await client.post("/v2/repository/index", json=body, headers=ADMIN)
    return {entry["name"]: entry["state"] for entry in reply.json()}


async def test_index_load_infer_and_unload(tmp_path: Path, tiny_artifact: Artifact) -> None:
    for name in ("org/a", "b"):
        add(tmp_path, name, tiny_artifact)
    async with serving_repository(tmp_path, on_demand=False) as client:
        assert await index(client) == {"b": "UNAVAILABLE", "org/a": "UNAVAILABLE"}
        asked = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
        assert (await client.get("/v2/models/org/a/ready")).status_code == 404
        reply = await client.post(
            "/v2/repository/models/org/a/load",
            json={"parameters": {"version": "1"}},
            headers=ADMIN,
        )
        assert (reply.status_code, reply.content) == (200, b"")
        assert await index(client, ready=True) == {"org/a": "READY"}
        assert (await client.get("/v2/models/org/a/ready")).status_code == 200
        inferred = await client.post("/v2/models/org/a/infer", json=asked)
        assert inferred.json()["model_version"] == "1", inferred.text
        assert (await client.get("/v2/models/org/a/versions/2")).status_code == 404
        await client.post("/v2/repository/models/org/a/unload", headers=ADMIN)
        assert (await index(client))["org/a"] in {"UNAVAILABLE", "UNLOADING"}


async def test_errors_have_the_protocols_form(tmp_path: Path, tiny_artifact: Artifact) -> None:
    add(tmp_path, "a", tiny_artifact)
    async with serving_repository(tmp_path) as client:
        for path in ("/v2/repository/index", "/v2/repository/models/a/load"):
            assert (await client.post(path)).status_code == 401
        wrong = {"parameters": {"config": "{}"}}
        reply = await client.post("/v2/repository/models/a/load", json=wrong, headers=ADMIN)
        assert (reply.status_code, reply.json().keys()) == (400, {"error"})
        reply = await client.post("/v2/repository/models/c/load", headers=ADMIN)
        assert reply.status_code == 404
        assert "it has: a" in reply.json()["error"]
