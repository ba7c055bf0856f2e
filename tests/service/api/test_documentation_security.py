"""Security schemes in the OpenAPI document: only with keys, for every route but the probes."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.telemetry.requests import PROBE_PATHS
from tests.service.harness import serving

pytestmark = pytest.mark.anyio


async def test_every_route_but_the_probes_asks_for_a_key(artifact: Artifact) -> None:
    engine = FakeEngine(artifact.manifest.config)
    async with serving(artifact, engine, api_keys="s3cret") as client:
        for key in ("Bearer s3cret", "Basic OnMzY3JldA=="):
            reply = await client.get("/openapi.json", headers={"authorization": key})
            assert reply.status_code == 200
    document = reply.json()
    schemes = document["components"]["securitySchemes"]
    assert [(one["type"], one["scheme"]) for one in schemes.values()] == [
        ("http", "bearer"),
        ("http", "basic"),
    ]
    assert document["security"] == [{name: []} for name in schemes]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation.get("security") == ([] if path in PROBE_PATHS else None), path


async def test_a_service_without_keys_tells_of_none(artifact: Artifact) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        document = (await client.get("/openapi.json")).json()
    assert "security" not in document
    assert "securitySchemes" not in document["components"]
