"""Pages of other origins (CORS) may do what the settings allow."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.inference.timings import HEADERS
from service.settings import Settings
from tests.service.harness import Client, serving
from tests.service.http.conftest import ORIGIN

pytestmark = pytest.mark.anyio
CORS = "access-control-allow-origin"


@pytest.mark.parametrize(
    "origins", ["", "example.org", "https://", "https://a/b", "https://a,", "null"]
)
def test_origins_that_cannot_be_met_are_refused_at_start(origins: str) -> None:
    with pytest.raises(ValueError, match="an origin is"):
        Settings(cors_origins=origins)


async def test_a_page_may_ask_before_it_has_a_key(guarded: Client) -> None:
    asked = "authorization, content-type, accept, x-request-id, x-request-timeout-ms"
    reply = await guarded.options(
        "/encode",
        headers={
            "origin": ORIGIN,
            "access-control-request-method": "POST",
            "access-control-request-headers": asked,
        },
    )
    assert reply.status_code == 200
    assert reply.headers[CORS] == ORIGIN
    allowed = reply.headers["access-control-allow-headers"].lower()
    assert set(asked.split(", ")) <= set(allowed.split(", "))
    assert reply.headers["access-control-allow-methods"] == "GET, POST"
    assert "access-control-allow-credentials" not in reply.headers
    assert "x-request-id" not in reply.headers  # as docs/api.md says


@pytest.mark.parametrize(
    ("origin", "method", "header"),
    [
        ("https://evil.example", "POST", "accept"),
        ("null", "POST", "accept"),
        (ORIGIN + ".evil.example", "POST", "accept"),
        (ORIGIN, "DELETE", "accept"),
        (ORIGIN, "POST", "x-other"),
    ],
)
async def test_it_is_told_what_it_may_not(
    guarded: Client, origin: str, method: str, header: str
) -> None:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": header,
    }
    reply = await guarded.options("/encode", headers=headers)
    assert reply.status_code == 400
    assert reply.headers.get(CORS) == (ORIGIN if origin == ORIGIN else None)


@pytest.mark.parametrize(
    ("content", "key", "status"),
    [
        (b'{"inputs": "a"}', "old-key", 200),
        (b'{"inputs": "a"}', "wrong", 401),
        (b'{"inputs": 1}', "old-key", 422),
        (b"[", "old-key", 400),
        (b"x" * 1001, "old-key", 413),
    ],
)
async def test_a_page_can_read_every_reply(
    guarded: Client, content: bytes, key: str, status: int
) -> None:
    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/json",
        "origin": ORIGIN,
    }
    reply = await guarded.post("/encode", content=content, headers=headers)
    assert reply.status_code == status
    assert reply.headers[CORS] == ORIGIN
    assert reply.headers["vary"] == "Origin"
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    own = {"x-request-id", "retry-after", "x-total-time", "x-queue-time", "x-model"}
    assert own | {*HEADERS.values()} <= {*exposed}
    assert "access-control-allow-credentials" not in reply.headers
    headers["origin"] = "https://evil.example"
    assert CORS not in (await guarded.post("/encode", content=content, headers=headers)).headers


async def test_one_origin_of_several_is_a_whole_origin_and_a_star_is_any(
    guarded: Client, artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    headers = {"origin": "http://localhost:3000", "authorization": "Bearer old-key"}
    assert (await guarded.get("/info", headers=headers)).headers[CORS] == headers["origin"]
    headers["origin"] = "http://localhost:30001"
    assert CORS not in (await guarded.get("/info", headers=headers)).headers
    async with serving(artifact, onnx_engine, cors_origins="*") as client:
        assert (await client.get("/info", headers=headers)).headers[CORS] == "*"
