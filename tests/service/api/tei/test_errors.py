"""TEI's form of errors, wherever they arise."""

from __future__ import annotations

import json

import pytest

from model.artifact.manifest import Artifact
from service.api.tei.errors import error_response
from service.errors import Overloaded
from tests.service.api.tei.tasks import RANKS, serving_task

pytestmark = pytest.mark.anyio


async def test_errors_before_and_in_a_route(artifact: Artifact) -> None:
    key = {"authorization": "Bearer k"}
    async with serving_task(artifact, RANKS, api_keys="k", max_body_bytes=1000) as client:
        as_json = key | {"content-type": "application/json"}
        refused = {
            400: await client.post("/rerank", headers=as_json, content=b"{"),
            405: await client.get("/rerank", headers=key),
            413: await client.post("/rerank", headers=as_json, content=b"x" * 1001),
            415: await client.post("/rerank", headers=key, content=b"{}"),
        }
        keyless = await client.post("/rerank", json={})
    for status, response in refused.items():
        assert response.status_code == status
        assert response.json().keys() == {"error", "error_type"}
    assert keyless.status_code == 401
    assert keyless.content == b""
    assert keyless.headers["www-authenticate"].startswith("Bearer")


def test_who_may_come_again_is_told_when() -> None:
    response = error_response(Overloaded("full", retry_after_seconds=2), "id")
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert json.loads(bytes(response.body)) == {"error": "full", "error_type": "Overloaded"}
