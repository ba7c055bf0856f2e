"""Every error of a request has the form of the dialect that owns its path, wherever it arises."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fastapi import APIRouter
from starlette.responses import Response

from model.artifact.manifest import Artifact
from service.api import dialects
from service.api.dialects import Dialect
from service.api.wire.problems import error_reply
from service.engines.onnx import OnnxEngine
from service.errors import InvalidRequest, ServiceError
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio
router = APIRouter()


@router.post("/other/{name}")
async def refuse(name: str) -> None:
    """Refuse the request."""
    raise InvalidRequest(f"no {name} here")


def other_form(error: ServiceError, request_id: str) -> Response:
    body = {"other": error.detail, "id": request_id}
    return error_reply(error, json.dumps(body).encode(), "application/json")


@pytest.fixture
def other_dialect(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    added = Dialect([router], other_form)
    monkeypatch.setattr(dialects, "DIALECTS", (*dialects.DIALECTS, added))
    return


@pytest.mark.usefixtures("other_dialect")
async def test_a_dialect_brings_its_own_errors(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    settings = {"api_keys": "k", "max_body_bytes": 1000}
    key = {"authorization": "Bearer k"}
    async with serving(artifact, onnx_engine, **settings) as client:
        refused = {
            400: await client.post("/other/thing", headers=key),
            401: await client.post("/other/thing"),
            405: await client.get("/other/thing", headers=key),
            413: await client.post("/other/thing", headers=key, content=b"x" * 1001),
        }
        for status, response in refused.items():
            assert response.status_code == status
            assert response.json().keys() == {"other", "id"}
            assert response.json()["id"] == response.headers["x-request-id"]
        assert refused[401].headers["www-authenticate"].startswith("Bearer")
        assert refused[400].json()["other"] == "no thing here"
        assert_problem(await client.post("/encode", headers=key, content=b"x" * 1001), 413)
        assert_problem(await client.post("/encode"), 401)
        assert_problem(await client.get("/nowhere", headers=key), 404)


async def test_verify_is_a_route_that_can_be_left_out(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    async with serving(artifact, onnx_engine, verify_route=False) as client:
        for method in ("POST", "GET", "OPTIONS"):
            assert_problem(await client.request(method, "/verify", json={"inputs": "a"}), 404)
        document = (await client.get("/openapi.json")).text
        assert "/encode" in document
        assert "erify" not in document
        assert (await client.post("/encode", json={"inputs": "a"})).status_code == 200
        assert "verify" not in (await client.get("/")).text.lower()


@pytest.mark.usefixtures("other_dialect")
def test_a_refusal_before_the_route_is_known_has_the_form_of_its_path() -> None:
    error = InvalidRequest("not HTTP")
    assert json.loads(bytes(dialects.error_response("/other/x", error, "i").body))["other"]
    assert json.loads(bytes(dialects.error_response("", error, "i").body))["title"]


async def test_every_route_names_another_encoding_than_utf_8(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    headers = {"content-type": "application/json", "authorization": "Bearer k"}
    async with serving(artifact, onnx_engine, admin_keys="k") as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        asked = [
            (method, path.replace("{model}", "small"))
            for path, methods in paths.items()
            for method, operation in methods.items()
            if "application/json" in operation.get("requestBody", {}).get("content", ())
        ]
        assert len(asked) > 25
        for method, path in asked:
            body = '{"inputs": "hé"}'.encode("latin-1")
            reply = await client.request(method, path, content=body, headers=headers)
            assert (path, reply.status_code) == (path, 400)
            assert "the body is not UTF-8 (at byte 13): encode it as UTF-8" in reply.text
