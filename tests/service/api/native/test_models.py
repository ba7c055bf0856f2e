"""`/models/{name}`: who may change models, and requests that ask for the impossible."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from tests.service.harness import Client, assert_problem
from tests.service.repositories import ADMIN, add, serving_repository

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
        ({"versions": "3"}, "versions"),
        ({"shadow_share": 1.5}, "shadow_share"),
        ({"targets": []}, "targets"),
        ({"targets": [{"model": "org/a"}], "version": "1"}, "makes an alias"),
        ({"targets": [{"model": "org/a", "share": 0.5}]}, "not loaded"),
        ([], "body"),
    ],
)
async def test_a_wrong_body_is_refused(client: Client, body: Any, says: str) -> None:
    reply = await client.put("/models/prod", json=body, headers=ADMIN)
    assert_problem(reply, 422, says)


async def test_shares_must_add_up_and_an_alias_is_no_models_name(client: Client) -> None:
    await client.put("/models/org/a", json={}, headers=ADMIN)
    half = {"targets": [{"model": "org/a", "share": 0.5}]}
    reply = await client.put("/models/prod", json=half, headers=ADMIN)
    assert_problem(reply, 422, "the shares add up to 0.5, not to 1")
    whole = {"targets": [{"model": "org/a"}]}
    reply = await client.put("/models/org/a", json=whole, headers=ADMIN)
    assert_problem(reply, 422, "is the name of a model")


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc", "org", "org/", "a%00b", "%2E%2E", "org/a/", "é", "x" * 3000]
)
async def test_names_that_are_not_of_the_repository(client: Client, name: str) -> None:
    reply = await client.put(f"/models/{name}", json={}, headers=ADMIN)
    assert_problem(reply, 404, "the repository has no such model")
    assert_problem(await client.get(f"/models/{name}", headers=USER), 404)
    assert_problem(await client.delete(f"/models/{name}", headers=ADMIN), 404)
