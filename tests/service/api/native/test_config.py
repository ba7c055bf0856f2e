"""`POST /config/reload`: who may reload."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from tests.service.harness import assert_problem
from tests.service.models.reloading import Configured, reload
from tests.service.repositories import ADMIN

pytestmark = pytest.mark.anyio


async def test_an_admin_reloads(tmp_path: Path, tiny_artifact: Artifact) -> None:
    config = Configured(tmp_path, tiny_artifact)
    config.write("a=one", top="api-keys = 'user'")
    async with config.serving() as client:
        assert_problem(await client.post("/config/reload"), 401)
        user = {"authorization": "Bearer user"}
        assert_problem(await client.post("/config/reload", headers=user), 403, "key 0 may not")
        reply = await reload(client)
        assert reply.json()["applied"] == []
        document = (await client.get("/openapi.json", headers=ADMIN)).json()
        assert document["paths"]["/config/reload"]["post"]["responses"].keys() >= {
            *("200", "401", "403", "409", "422", "507")
        }
