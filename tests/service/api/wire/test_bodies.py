"""Bodies that are not JSON or too large get a small problem; see the recording, too."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import Artifact
from service.api.wire import bodies
from service.api.wire.bodies import (
    INLINE_BODY_BYTES,
    MAX_VALUES,
    count_values,
    parsed_bytes,
    read_json,
)
from service.api.wire.route import ModelRequest, validated
from service.engines.onnx import OnnxEngine
from service.errors import InvalidRequest, Overloaded, RequestTooLarge, Unprocessable
from service.system.budget import ByteBudget, Reservation
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio
TEXTS = st.text(st.sampled_from('ab"\\,[{]}: é😀'), max_size=12)
VALUES = st.recursive(
    st.none() | st.integers(-9, 10**9) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=40,
)


def values(body: Any) -> int:
    """Return the number of values in a body; empty lists and objects count twice."""
    if isinstance(body, list | dict):
        inner = body.values() if isinstance(body, dict) else body
        return 1 + (sum(map(values, inner)) if body else 1)
    return 1


@given(VALUES, st.integers(1, 30))
def test_commas_and_brackets_in_texts_are_no_values(body: Any, block_bytes: int) -> None:
    """This holds however the body is divided into blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "BLOCK_BYTES", block_bytes)
        assert count_values(orjson.dumps(body)) == values(body)


LARGE: dict[str, bytes] = {
    "pairs": b"[" + b",".join([b'["a","b"]'] * 1_600_000) + b"]",
    "empty lists": b"[" + b"[]," * 5_000_000 + b"[]]",
    "objects": b"[" + b'{"a":1},' * 1_900_000 + b"1]",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "open": b'[["' * 100_000,
}


def unbounded() -> Reservation:
    return Reservation(ByteBudget(2**40))


@pytest.mark.parametrize("name", LARGE)
async def test_nothing_is_built_of_too_many_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies.orjson, "loads", None)  # any parsing fails
    with pytest.raises(Unprocessable, match="more than 65536 values"):
        await read_json(LARGE[name], unbounded())


@pytest.mark.parametrize(
    "text", ["," * 3_000_000, '"' * 1_000_000, "\\" * 1_000_001, '\\"[' * 500_000]
)
async def test_a_long_text_is_one_value_whatever_it_holds(text: str) -> None:
    assert await read_json(orjson.dumps({"inputs": text}), unbounded()) == {"inputs": text}


async def test_the_bound_is_exact() -> None:
    list_itself = 1
    most = orjson.dumps([10**8] * (MAX_VALUES - list_itself))
    assert len(most) > INLINE_BODY_BYTES
    assert len(await read_json(most, unbounded())) == MAX_VALUES - list_itself
    with pytest.raises(Unprocessable):
        await read_json(orjson.dumps([10**8] * MAX_VALUES), unbounded())


async def test_what_is_no_json_is_refused_at_any_size() -> None:
    for body in (b"{", b'{"inputs": "' + b"a" * 10**6, b'"' + b"a" * 10**6 + b'\xff"'):
        with pytest.raises(InvalidRequest):
            await read_json(body, unbounded())


@pytest.mark.parametrize("size", [3, INLINE_BODY_BYTES])
@pytest.mark.parametrize(
    ("encoding", "says"),
    [
        ("latin-1", "is not UTF-8 (at byte {}): encode it as UTF-8"),
        ("utf-8-sig", "begins with a byte order mark (UTF-8 BOM): send it without"),
        ("utf-16", "is not UTF-8 but UTF-16 by its byte order mark: encode it as UTF-8"),
        ("utf-16-le", "is not UTF-8 but UTF-16 by its zero bytes: encode it as UTF-8"),
        ("utf-32", "is not UTF-8 but UTF-32 by its byte order mark: encode it as UTF-8"),
        ("utf-32-be", "is not UTF-8 but UTF-32 by its zero bytes: encode it as UTF-8"),
        ("utf-8", "is not valid JSON (at byte {})"),
    ],
)
async def test_another_encoding_is_named(encoding: str, says: str, size: int) -> None:
    """Of bodies of any size; places are counted in bytes, also after characters of several."""
    text = "a" * size + "é"
    start, end = f'{{"inputs": "{text}"', "" if encoding == "latin-1" else " no"
    place = start.encode().index(b"\xc3") if encoding == "latin-1" else len(start.encode()) + 1
    with pytest.raises(InvalidRequest) as refused:
        await read_json((start + end).encode(encoding), unbounded())
    assert refused.value.detail.startswith("the body " + says.format(place))


@pytest.mark.parametrize("large", [True, False])
async def test_memory_is_held_before_anything_is_built(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"inputs": "' + b"a" * (10**6 if large else 10) + b'"}'
    monkeypatch.setattr(bodies.orjson, "loads", None)  # whoever parses fails
    reservation = Reservation(ByteBudget(len(body)))
    with pytest.raises(RequestTooLarge, match="more than"):
        await read_json(body, reservation)
    budget = ByteBudget(2 * len(body))
    other, reservation = Reservation(budget), Reservation(budget)
    other.grow(2 * len(body))
    with pytest.raises(Overloaded if large else RequestTooLarge):
        await read_json(body, reservation)


@pytest.mark.parametrize(
    "value",
    [
        ["a" * 1000] * 500,
        ["aa"] * 5000,
        [[]] * 5000,
        [{}] * 5000,
        list(range(1000, 6000)),
        ["é" * 300] * 100,
        ["a" * 300 + "\U0001f600"] * 100,
        [{"text": "a b"}] * 1000,
    ],
)
def test_values_hold_no_more_than_is_reserved(value: Any) -> None:
    for body in (orjson.dumps(value), json.dumps(value).encode()):
        assert memory_of(orjson.loads(body)) <= parsed_bytes(body)


def memory_of(value: Any) -> int:
    """Bytes of a value and of all values inside."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        size += sum(memory_of(one) for one in value.values())
    if isinstance(value, list):
        size += sum(memory_of(one) for one in value)
    return size


JSON = {"content-type": "application/json"}
GOOD = b'{"inputs": "still here?"}'


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


def test_a_schema_of_a_new_dialect_ignores_no_field() -> None:
    class NewRequest(ModelRequest):
        texts: list[str]

    with pytest.raises(Unprocessable, match=r"^dimensions: Extra inputs"):
        validated(NewRequest, {"texts": ["a"], "dimensions": 2})
