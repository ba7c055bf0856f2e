"""The server's metadata and its probes, which need no key."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from service.models.state import state_of
from service.system.distribution import version
from tests.service.harness import serving
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio


async def test_probes_and_metadata(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact), api_keys="k") as client:
        for path in ("live", "ready"):
            answer = await client.get(f"/v2/health/{path}")
            assert (answer.status_code, answer.content) == (200, b"")
        refused = await client.get("/v2")
        assert (refused.status_code, refused.json().keys()) == (401, {"error"})
        server = (await client.get("/v2", headers={"authorization": "Bearer k"})).json()
        extensions = ["binary_tensor_data", "model_repository"]
        assert server == {"name": "headscope", "version": version(), "extensions": extensions}
        state_of(client.app).readiness.draining = True
        assert (await client.get("/v2/health/live")).status_code == 200
        stopping = await client.get("/v2/health/ready")
        assert (stopping.status_code, stopping.json().keys()) == (400, {"error"})
