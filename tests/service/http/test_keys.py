"""A client without a key may only request health."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import httpx
import pytest

from service.settings import Settings
from tests.service.harness import Client, assert_problem
from tests.service.http.conftest import ORIGIN

pytestmark = pytest.mark.anyio
CHALLENGES = ['Bearer realm="headscope"', 'Basic realm="headscope", charset="UTF-8"']
CORS = "access-control-allow-origin"
TEXT = {"inputs": "a"}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


PROBES = ["/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"]


@pytest.mark.parametrize("path", PROBES)
async def test_probes_are_open(guarded: Client, path: str) -> None:
    assert (await guarded.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/"),
        ("POST", "/dashboard/index.html"),
        ("GET", "/dashboard"),
        ("GET", "//dashboard/index.html"),
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


@pytest.mark.parametrize("path", ["/", "/dashboard/index.html", "/dashboard/main.js"])
async def test_the_page_is_open_and_asks_for_the_key_itself(guarded: Client, path: str) -> None:
    assert (await guarded.get(path)).status_code == 200
    refused = await guarded.get("/info", headers={"x-requested-with": "XMLHttpRequest"})
    assert refused.headers.get_list("www-authenticate") == CHALLENGES[:1], "no browser's dialog"


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


def test_keys_are_never_shown() -> None:
    assert "c4n4ry" not in repr(Settings(api_keys="c4n4ry"))
    assert "c4n4ry" not in str(Settings(api_keys="c4n4ry"))
