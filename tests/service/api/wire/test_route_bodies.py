"""Bodies that are not JSON, too large or wrongly labelled get a small problem, never a 500."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi.exceptions import RequestValidationError

from model.artifact.manifest import Artifact
from service.api.wire.route import ModelRequest, validated
from service.engines.onnx import OnnxEngine
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio
CANARY = b"c4n4ry"
JSON = {"content-type": "application/json"}
GOOD = b'{"inputs": "still here?"}'
DEEP = 30_000


@pytest.fixture(autouse=True)
async def canary(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Check that a good request gets the same reply before and after the test."""
    before = await client.post("/encode", content=GOOD, headers=JSON)
    assert before.status_code == 200
    yield
    after = await client.post("/encode", content=GOOD, headers=JSON)
    assert after.content == before.content


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b" \n", id="blanks"),
        pytest.param(CANARY, id="no JSON"),
        pytest.param(b'{"inputs": "c4n4ry', id="cut short"),
        pytest.param(b'{"inputs": "c4n4ry"}}', id="too long"),
        pytest.param(b'{"inputs": "c4n4ry",}', id="trailing comma"),
        pytest.param(b"{'inputs': 'c4n4ry'}", id="single quotes"),
        pytest.param(b'{"inputs": NaN}', id="NaN"),
        pytest.param(b'{"inputs": ["c4n4ry", NaN]}', id="NaN in a list"),
        pytest.param(b'{"inputs": Infinity}', id="Infinity"),
        pytest.param(b'{"inputs": -Infinity}', id="-Infinity"),
        pytest.param(b'{"inputs": "a", "layer": 1e999}', id="a number beyond float64"),
        pytest.param(b'{"inputs": "a", "layer": ' + b"1" * 5000 + b"}", id="5000 digits"),
        pytest.param(b'{"inputs": "c4n4ry \\ud800"}', id="a lone surrogate"),
        pytest.param(b'{"inputs": ["ok", "\\udfff c4n4ry"]}', id="a lone low surrogate"),
        pytest.param(b'{"\\ud800": "c4n4ry"}', id="a lone surrogate in a name"),
        pytest.param(b'{"inputs": "c4n4ry \x01"}', id="a raw control character"),
        pytest.param(b'{"inputs": "c4n4ry \\x41"}', id="an unknown escape"),
        pytest.param(b"[" * DEEP, id="deep and open"),
        pytest.param(b"[" * DEEP + b"]" * DEEP, id="deep list"),
        pytest.param(b'{"inputs": ' + b"[" * DEEP + b"]" * DEEP + b"}", id="deep inputs"),
        pytest.param(b'{"a":' * DEEP + b"1" + b"}" * DEEP, id="deep object"),
    ],
)
async def test_no_json(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/encode", content=body, headers=JSON)
    assert_problem(response, 400, says="not valid JSON (at byte ")
    assert CANARY not in response.content


@pytest.mark.parametrize("body", [b"[]", b'"c4n4ry"', b"1", b"null", b"true", b"[{}]"])
async def test_json_that_is_no_object(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/encode", content=body, headers=JSON)
    assert_problem(response, 422, says="body: ")
    assert CANARY not in response.content


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/mixed; boundary=x"},
        {"content-type": "application/jsonp"},
        {"content-type": "application"},
        {"content-type": "/;json"},
        {"content-type": "text/plain; application/json"},
        {"content-type": "\xff"},
    ],
    ids=str,
)
async def test_a_content_type_that_is_not_json(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    raw = [(name, value.encode("latin-1")) for name, value in headers.items()]
    response = await client.post("/encode", content=GOOD, headers=raw)
    assert_problem(response, 415, says="content type must be application/json")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON ;charset=UTF-8"],
)
async def test_json_by_any_spelling(client: httpx.AsyncClient, content_type: str) -> None:
    headers = {"content-type": content_type, "content-encoding": "identity"}
    response = await client.post("/encode", content=GOOD, headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "gzip, gzip", "GZIP"])
async def test_compressed_bodies_are_not_unpacked(client: httpx.AsyncClient, encoding: str) -> None:
    bomb = gzip.compress(b'{"inputs": "' + b"a" * 10**7 + b'"}')
    response = await client.post(
        "/encode", content=bomb, headers=JSON | {"content-encoding": encoding}
    )
    assert_problem(response, 415, says="compressed")
    unlabelled = await client.post("/encode", content=bomb, headers=JSON)
    assert_problem(unlabelled, 400)


async def chunks(total: int, each: int) -> AsyncIterator[bytes]:
    for start in range(0, total, each):
        yield b" " * min(each, total - start)


@pytest.mark.parametrize("route", ["/encode", "/attention", "/verify", "/health", "/nowhere"])
async def test_bodies_over_the_limit(
    artifact: Artifact, onnx_engine: OnnxEngine, route: str
) -> None:
    async with serving(artifact, onnx_engine, max_body_bytes=1000) as client:
        sent: list[Any] = [b" " * 1001, chunks(1001, 100), chunks(10**7, 10**6)]
        for content in sent:
            response = await client.post(route, content=content, headers=JSON)
            assert_problem(response, 413, says="more than 1000 bytes")
        fits = GOOD.ljust(1000)
        assert (await client.post("/encode", content=fits, headers=JSON)).status_code == 200


@pytest.mark.parametrize("length", ["1001", "9" * 30, "9" * 5000])
async def test_a_stated_length_over_the_limit_is_refused_before_the_body_comes(
    artifact: Artifact, onnx_engine: OnnxEngine, length: str
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield GOOD
        await asyncio.Event().wait()

    async with serving(artifact, onnx_engine, max_body_bytes=1000) as client, asyncio.timeout(60):
        headers = JSON | {"content-length": length}
        response = await client.post("/encode", content=body(), headers=headers)
    assert_problem(response, 413, says="more than 1000 bytes")


@pytest.mark.parametrize("value", [b"-1", b"1e9", b"\xb2", b"+5", b"0x10", b""])
async def test_a_stated_length_that_is_no_number_is_the_servers_matter(
    client: httpx.AsyncClient, value: bytes
) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", value)]
    response = await client.post("/encode", content=GOOD, headers=headers)
    assert response.status_code == 200


async def test_the_last_of_duplicate_names_counts(client: httpx.AsyncClient) -> None:
    body = b'{"inputs": "first", "outputs": ["pooled"], "inputs": "second one"}'
    response = await client.post("/encode", content=body, headers=JSON)
    assert response.json()["results"][0]["tokens"] == ["[CLS]", "second", "one", "[SEP]"]


def test_a_schema_of_a_new_dialect_ignores_no_field() -> None:
    class NewRequest(ModelRequest):
        texts: list[str]

    with pytest.raises(RequestValidationError) as raised:
        validated(NewRequest, {"texts": ["a"], "dimensions": 2})
    assert [error["loc"] for error in raised.value.errors()] == [("body", "dimensions")]
