"""JSON routes of fixed paths are called directly; their errors keep their form."""

from __future__ import annotations

import pytest
from starlette.types import Receive, Scope, Send

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio


async def test_only_other_paths_and_methods_reach_the_router(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed: list[str] = []
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        router = client.app.router
        answer = router.middleware_stack

        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            routed.append(f"{scope['method']} {scope['path']}")
            await answer(scope, receive, send)

        monkeypatch.setattr(router, "middleware_stack", noting)
        assert (await client.post("/encode", json={"inputs": "a text"})).status_code == 200
        assert_problem(await client.post("/encode", json={"inputs": 1}), 422)
        assert_problem(await client.post("/encode", json={"inputs": "a", "layer": 99}), 422)
        assert routed == []
        assert_problem(await client.get("/encode"), 405)
        assert_problem(await client.post("/encode/", json={}), 404)
        assert routed == ["GET /encode", "POST /encode/"]
