"""Keys that may change the served models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from tests.service.harness import Client, assert_problem
from tests.service.repositories import ADMIN, add, serving_repository

pytestmark = pytest.mark.anyio

USER = {"authorization": "Bearer user"}
OPERATIONS = (("PUT", "/models/org/a"), ("DELETE", "/models/org/a"))


@pytest.fixture
async def client(
    tmp_path: Path, tiny_artifact: Artifact, anyio_backend: str
) -> AsyncIterator[Client]:
    add(tmp_path, "org/a", tiny_artifact)
    async with serving_repository(tmp_path, api_keys="user") as client:
        yield client


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
async def test_only_an_admin_key_may_change_models(client: Client, method: str, path: str) -> None:
    assert_problem(await client.request(method, path), 401)
    assert_problem(await client.request(method, path, headers=USER), 403, "key 0 may not change")
    wrong = {"authorization": "Bearer other"}
    assert_problem(await client.request(method, path, headers=wrong), 401)


async def test_the_admin_key_is_a_key_for_all_other_routes(client: Client) -> None:
    body = {"inputs": "a", "model": "org/a"}
    assert (await client.post("/encode", json=body, headers=ADMIN)).status_code == 200
    assert (await client.post("/encode", json=body, headers=USER)).status_code == 200
    assert_problem(await client.post("/encode", json=body), 401)


async def test_without_admin_keys_it_is_off(tmp_path: Path, tiny_artifact: Artifact) -> None:
    add(tmp_path, "a", tiny_artifact)
    async with serving_repository(tmp_path, admin_keys=None) as client:
        assert_problem(await client.put("/models/a", headers=ADMIN), 403, "--admin-keys")
        assert (await client.get("/models/a")).status_code == 200
    async with serving_repository(tmp_path) as client:  # and other requests need none
        assert (await client.post("/encode", json={"inputs": "a"})).status_code == 200
