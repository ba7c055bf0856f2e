"""`/models/{name}`: who may change models, and requests that ask for the impossible."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import MANIFEST, Artifact
from tests.service.harness import Client, assert_problem
from tests.service.logged import Log
from tests.service.repositories import ADMIN, add, encode, serving_repository, states

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(
    tmp_path: Path, tiny_artifact: Artifact, anyio_backend: str
) -> AsyncIterator[Client]:
    add(tmp_path, "org/a", tiny_artifact)
    async with serving_repository(tmp_path, api_keys="user") as client:
        yield client


USER = {"authorization": "Bearer user"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"version": 3}, "version"),
        ({"version": ""}, "version"),
        ({"versions": "3"}, "versions"),
        ({"targets": [{"model": "org/a", "share": 0.5}]}, "targets"),
        ({"target": "org/a", "version": "1"}, "makes an alias"),
        ({"target": "org/a"}, "org/a is not loaded"),
        ({"shadow_share": 0.1}, "shadow_share"),
        ([], "body"),
    ],
)
async def test_a_wrong_body_is_refused(client: Client, body: Any, says: str) -> None:
    reply = await client.put("/models/prod", json=body, headers=ADMIN)
    assert_problem(reply, 422, says)


async def test_an_alias_is_no_models_name(client: Client) -> None:
    await client.put("/models/org/a", json={}, headers=ADMIN)
    whole = {"target": "org/a"}
    reply = await client.put("/models/org/a", json=whole, headers=ADMIN)
    assert_problem(reply, 422, "is the name of a model")
    await client.put("/models/prod", json=whole, headers=ADMIN)
    reply = await client.put("/models/live", json={"target": "prod"}, headers=ADMIN)
    assert_problem(reply, 422, "target: prod is an alias")
    reply = await client.put("/models/prod", json={}, headers=ADMIN)
    assert_problem(reply, 422, "prod is an alias: load its model", error_type="Backend")


async def test_an_alias_does_not_hide_a_model_that_is_not_loaded_or_a_version(
    client: Client, tmp_path: Path, tiny_artifact: Artifact
) -> None:
    add(tmp_path, "b", tiny_artifact)
    await client.put("/models/org/a", json={}, headers=ADMIN)
    whole = {"target": "org/a"}
    reply = await client.put("/models/b", json=whole, headers=ADMIN)
    assert_problem(reply, 422, "b is the name of a model")
    for name in ("", "a%0Ab", "x" * 513, "org/a@1"):
        reply = await client.put(f"/models/{name}", json=whole, headers=ADMIN)
        assert_problem(reply, 422, "an alias needs 1 to 512 printable characters without @")


async def test_only_admins_see_the_folder_in_the_reason_of_a_failed_load(
    client: Client, tmp_path: Path
) -> None:
    (tmp_path / "org/a" / MANIFEST).write_text("{}", encoding="utf-8")
    assert str(tmp_path) in (await client.put("/models/org/a", json={}, headers=ADMIN)).text
    said = {}
    for who, headers in (("admin", ADMIN), ("user", USER)):
        (version,) = (await client.get("/models/org/a", headers=headers)).json()["versions"]
        assert version["state"] == "failed"
        said[who] = version["reason"]
    assert str(tmp_path) in said["admin"]
    assert said["user"] == "cannot be loaded: the service's log has the reason"


async def test_a_repository_that_is_gone_is_not_named(
    client: Client, tmp_path: Path, log: Log
) -> None:
    shutil.rmtree(tmp_path)
    reply = await client.get("/models/org/a", headers=USER)
    problem = assert_problem(reply, 422, "cannot be read", error_type="Backend")
    assert str(tmp_path) not in problem["detail"]
    assert str(tmp_path) in log.text
    encoded = await client.post("/encode", json={"inputs": "a", "model": "org/a"}, headers=USER)
    assert_problem(encoded, 503, "org/a cannot be loaded", "Unhealthy")
    listed = await client.get("/v1/models", headers=USER)
    assert (listed.status_code, listed.json()["data"]) == (200, [])


async def test_errors_before_the_only_model_is_loaded_keep_their_status(client: Client) -> None:
    reply = await client.post("/encode", json={"inputs": 1}, headers=USER)
    assert_problem(reply, 422, "inputs")


async def test_several_workers_take_no_commands(tmp_path: Path, tiny_artifact: Artifact) -> None:
    add(tmp_path, "a", tiny_artifact)
    says = "this service has 2 workers, and models are loaded"
    async with serving_repository(tmp_path, workers=2) as client:
        assert (await encode(client, "a")).status_code == 200, "each worker loads on demand"
        for reply in (
            await client.put("/models/a", json={}, headers=ADMIN),
            await client.put("/models/b", json={"target": "a"}, headers=ADMIN),
            await client.delete("/models/a", headers=ADMIN),
        ):
            assert_problem(reply, 422, says)
        for command in ("load", "unload"):
            reply = await client.post(f"/v2/repository/models/a/{command}", headers=ADMIN)
            assert (reply.status_code, says in reply.json()["error"]) == (400, True)
        assert (await client.post("/v2/repository/index", headers=ADMIN)).status_code == 200
        assert await states(client, "a") == {"1": "serving"}


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc", "org", "org/", "a%00b", "%2E%2E", "org/a/", "é", "x" * 3000]
)
async def test_names_that_are_not_of_the_repository(client: Client, name: str) -> None:
    reply = await client.put(f"/models/{name}", json={}, headers=ADMIN)
    assert_problem(reply, 404, "the repository has no such model")
    assert_problem(await client.get(f"/models/{name}", headers=USER), 404)
    assert_problem(await client.delete(f"/models/{name}", headers=ADMIN), 404)
