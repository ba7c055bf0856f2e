"""Who has no key gets nothing but health; pages of other origins get what the settings say."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import httpx
import pytest

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from service.settings import Settings
from tests.service.harness import Client, assert_problem, serving

pytestmark = pytest.mark.anyio
CHALLENGES = ['Bearer realm="headscope"', 'Basic realm="headscope", charset="UTF-8"']
ORIGIN = "https://example.org"
CORS = "access-control-allow-origin"
TEXT = {"inputs": "a"}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture(scope="module")
async def guarded(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[Client]:
    keys, origins = "old-key, n3w:key", f"{ORIGIN}, http://localhost:3000"
    async with serving(
        artifact, onnx_engine, api_keys=keys, cors_origins=origins, max_body_bytes=1000
    ) as client:
        yield client


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
async def test_probes_are_open(guarded: Client, path: str) -> None:
    assert (await guarded.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/dashboard/index.html"),
        ("GET", "/metrics"),
        ("GET", "/info"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/HEALTH"),
        ("GET", "/health/live/../../metrics"),
        ("OPTIONS", "/encode"),
        ("POST", "/encode"),
        ("POST", "/attention"),
        ("POST", "/verify"),
    ],
)
async def test_all_else_needs_a_key(guarded: Client, method: str, path: str) -> None:
    refused = await guarded.request(method, httpx.URL(guarded.base_url, raw_path=path.encode()))
    problem = assert_problem(refused, 401, says="Bearer")
    assert problem["type"] == "/problems/unauthorized"
    assert not problem["retryable"]
    assert refused.headers.get_list("www-authenticate") == CHALLENGES


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer old-key",
        "bearer n3w:key",
        "BEARER   old-key",
        basic("", "old-key"),
        basic("anyone", "n3w:key"),
        basic("any\u00f6ne", "old-key"),
    ],
)
async def test_any_of_the_keys_will_do(guarded: Client, authorization: str) -> None:
    headers = {"authorization": authorization}
    reply = await guarded.post("/encode", json=TEXT, headers=headers)
    assert reply.status_code == 200
    assert "www-authenticate" not in reply.headers
    assert (await guarded.get("/metrics", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "values",
    [
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"old-key"],
        [b"Bearer old-key2"],
        [b"Bearer old-ke"],
        [b"Bearer OLD-KEY"],
        [b"Bearer old-key,n3w:key"],
        [b"Bearer old-key, n3w:key"],
        [b"Bearer old-key old-key"],
        [b"Bearer\told-key"],
        [b"Token old-key"],
        [b"Digest username=old-key"],
        [b"Bearer \xff\xfe"],
        [b"Bearer \xc3\xb6ld-key"],
        [b"\xff old-key"],
        [b"Bearer old-key", b"Bearer old-key"],
        [b"Bearer wrong", b"Bearer old-key"],
        [b"Bearer " + b"old-key" * 4000],
        [b"Bearer old-key" + b" " * 4096],
        [b"Basic"],
        [b"Basic !!!!"],
        [b"Basic b2xkLWtleQ"],
        [b"Basic b2xkLWtleQ=="],
        [b"Basic \xff\xff\xff\xff"],
        [b"Basic " + base64.b64encode(b":")],
        [b"Basic " + base64.b64encode(b"old-key:")],
        [b"Basic " + base64.b64encode(b"old-key:old-key:")],
        [b"Basic " + base64.b64encode(b"a:\xff\xfe")],
        [b"Basic " + base64.b64encode(b"a:old-key") + b"\xff"],
    ],
)
async def test_any_other_header_is_no_key(guarded: Client, values: list[bytes]) -> None:
    headers = [(b"authorization", value) for value in values]
    assert_problem(await guarded.get("/info", headers=headers), 401)
    assert_problem(await guarded.post("/encode", json=TEXT, headers=headers), 401)


async def test_the_key_is_looked_at_before_the_body(guarded: Client) -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    refused = await guarded.post("/encode", content=never(), headers={"content-length": "9999"})
    assert_problem(refused, 401)
    assert refused.headers["connection"] == "close"
    assert "connection" not in (await guarded.get("/info")).headers


async def test_without_keys_none_is_needed(client: httpx.AsyncClient) -> None:
    headers = {"authorization": "Bearer whatever", "origin": ORIGIN}
    reply = await client.post("/encode", json=TEXT, headers=headers)
    assert reply.status_code == 200
    assert CORS not in reply.headers


@pytest.mark.parametrize(
    "keys", ["", " ", ",", "a,", ",a", "a,,b", "a b", "k\u00e9y", "a\nb", "a\0"]
)
def test_keys_that_cannot_be_sent_are_refused_at_start(keys: str) -> None:
    with pytest.raises(ValueError, match="a key is empty, or not of printable ASCII"):
        Settings(api_keys=keys)


@pytest.mark.parametrize(
    "origins", ["", "example.org", "https://", "https://a/b", "https://a,", "null"]
)
def test_origins_that_cannot_be_met_are_refused_at_start(origins: str) -> None:
    with pytest.raises(ValueError, match="an origin is"):
        Settings(cors_origins=origins)


def test_keys_are_never_shown() -> None:
    assert "c4n4ry" not in repr(Settings(api_keys="c4n4ry"))
    assert "c4n4ry" not in str(Settings(api_keys="c4n4ry"))


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
    assert {"x-request-id", "retry-after", "x-total-time", "x-queue-time"} <= set(exposed)
    assert "access-control-allow-credentials" not in reply.headers
    headers["origin"] = "https://evil.example"
    assert CORS not in (await guarded.post("/encode", content=content, headers=headers)).headers


async def test_any_page_where_the_settings_say_so(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    async with serving(artifact, onnx_engine, cors_origins="*") as client:
        reply = await client.post("/encode", json=TEXT, headers={"origin": "https://any.example"})
    assert reply.headers[CORS] == "*"
    assert "access-control-allow-credentials" not in reply.headers


async def test_one_origin_of_several_is_a_whole_origin(guarded: Client) -> None:
    headers = {"origin": "http://localhost:3000", "authorization": "Bearer old-key"}
    assert (await guarded.get("/info", headers=headers)).headers[CORS] == headers["origin"]
    headers["origin"] = "http://localhost:30001"
    assert CORS not in (await guarded.get("/info", headers=headers)).headers
