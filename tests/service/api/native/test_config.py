"""`POST /config/reload`: who may reload."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.models.reload import DETAIL_CHARACTERS
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


async def test_names_of_tables_are_escaped_and_short(
    tmp_path: Path, tiny_artifact: Artifact
) -> None:
    config = Configured(tmp_path, tiny_artifact)
    config.write("a=one")
    content = config.path.read_text()
    async with config.serving() as client:
        for name in (r"x\nHTTP/1.1 200\r\u001b[2J\u2028", "x" * 10**5):
            for mistake in (f'[model."{name}"]\nload = 1', f'["{name}"]', f'[alias]\n"{name}" = 1'):
                config.path.write_text(f"{content}\n{mistake}\n")
                reply = await reload(client)
                assert reply.status_code == 422
                assert "headscope.toml, line " in (detail := reply.json()["detail"])
                assert "x" in detail
                assert detail.isprintable()
                assert len(detail.removesuffix("…")) <= DETAIL_CHARACTERS
