"""Malformed bodies: each is refused in one line, or read without losing a byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.artifact.manifest import Artifact
from service.api.kserve.inputs import elements, flattened, json_length, texts_of
from service.api.kserve.schema import InputTensor
from service.errors import ServiceError
from tests.service.api.kserve import wire
from tests.service.api.kserve.wire import MODEL, framed, in_bytes, in_json, tensors
from tests.service.harness import serving
from tests.service.several import fake_of

quick = settings(max_examples=60, deadline=None)
SHORT = st.lists(st.sampled_from([b"\0\0\0\0", b"\1\0\0\0a", b"\0", b"\xff"]), max_size=4).map(
    b"".join
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def outcome(read: Callable[..., list[Any]], *arguments: Any) -> list[Any] | ServiceError:
    """Return the texts read, or the refusal; any other exception fails the test."""
    try:
        return read(*arguments)
    except ServiceError as error:
        return error


@quick
@given(st.lists(TEXT, min_size=1, max_size=8))
def test_elements_are_what_was_written(texts: list[str]) -> None:
    assert elements(memoryview(wire.elements(texts)), len(texts)) == texts


@quick
@given(SHORT, st.sampled_from([1, 2, 3, 2**40]))
def test_any_bytes_are_texts_or_refused(data: bytes, count: int) -> None:
    """Accepted bytes are written again as the same bytes: nothing is skipped."""
    found = outcome(elements, memoryview(data), count)
    if isinstance(found, ServiceError):
        assert found.status == 400
    else:
        assert len(found) == count
        assert wire.elements(found) == data


@quick
@given(st.lists(TEXT, min_size=1), st.data())
def test_a_changed_byte_or_length_is_never_another_failure(
    texts: list[str], data: st.DataObject
) -> None:
    whole = bytearray(wire.elements(texts))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    cut = memoryview(whole)[: data.draw(st.integers(0, len(whole)))]
    shape = data.draw(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=2))
    said = {"binary_data_size": data.draw(st.sampled_from([len(cut), len(whole), 0, 2**62]))}
    described = {"name": "text", "datatype": "BYTES", "shape": shape, "parameters": said}
    found = outcome(texts_of, InputTensor.model_validate(described), cut)
    if isinstance(found, ServiceError):
        assert found.status in (400, 422)
        assert len(found.detail) < 200
    else:
        assert len(found) == shape[0]


NESTED = st.recursive(
    TEXT | st.none() | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=8
)


@quick
@given(st.lists(NESTED, max_size=4), st.lists(st.integers(1, 3), min_size=1, max_size=2))
def test_any_list_is_texts_of_the_shape_or_refused(data: list[Any], shape: list[int]) -> None:
    found = outcome(flattened, data, shape)
    if isinstance(found, ServiceError):
        assert found.status == 400
    else:
        assert len(found) == shape[0] * (shape[1] if shape[1:] else 1)
        assert all(isinstance(text, str) for text in found)


@pytest.mark.parametrize("said", ["", "0", "-1", "6", "1e1", "１", " 3", "99999999999999999999"])
def test_a_length_that_is_none(said: str) -> None:
    with pytest.raises(ServiceError, match=r"1 … 5"):
        json_length(said, 5)


@pytest.fixture(scope="module")
async def fake(artifact: Artifact, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(artifact, fake_of(artifact)) as client:
        yield client


def tensor(**changed: Any) -> dict[str, Any]:
    return {"name": "text", "datatype": "BYTES", "shape": [1]} | changed


def bodies() -> dict[str, tuple[dict[str, Any], str]]:
    """Return `httpx`'s arguments for each body, and the message of its refusal."""
    one, size = wire.elements(["a"]), {"binary_data_size": 5}
    sized = tensor(parameters=size)
    return {
        "no JSON": ({"content": b"{"}, "not valid JSON"),
        "JSON in no UTF-8": ({"content": b"\x80"}, "not UTF-8 (at byte 0)"),
        "a list": ({"json": []}, "body"),
        "no inputs": ({"json": {}}, "inputs"),
        "two inputs": ({"json": {"inputs": [tensor(data=["a"])] * 2}}, "inputs"),
        "another name": ({"json": {"inputs": [tensor(name="x", data=["a"])]}}, "name"),
        "another type": ({"json": {"inputs": [tensor(datatype="FP32", data=[1.0])]}}, "datatype"),
        "a negative size": ({"json": {"inputs": [tensor(shape=[-1], data=["a"])]}}, "shape"),
        "no rows": ({"json": in_json([], [0])}, "shape"),
        "three columns": ({"json": in_json(["a"] * 3, [1, 3])}, "[B, 2]"),
        "three axes": ({"json": in_json(["a"], [1, 1, 1])}, "shape"),
        "a huge axis": ({"json": in_json(["a"], [1, 2**31 - 1])}, "the shape must be"),
        "too few values": ({"json": in_json(["a"], [2])}, "1 values"),
        "a number": ({"json": in_json([1], [1])}, "must be a text"),
        "neither form": ({"json": {"inputs": [tensor()]}}, "is needed"),
        "both forms": (framed({"inputs": [sized | {"data": ["a"]}]}, one), "is needed"),
        "bytes, no header": ({"json": {"inputs": [sized]}}, "0 follow the JSON"),
        "bytes after JSON": (framed(in_json(["a"], [1]), b"x"), "1 follow the JSON"),
        "fewer bytes": (framed({"inputs": [sized]}, one[:-1]), "4 follow the JSON"),
        "more bytes": (framed({"inputs": [sized]}, one + b"x"), "6 follow the JSON"),
        "a longer element": (framed({"inputs": [sized]}, b"\xff\xff\xff\xffa"), "ends within"),
        "a shorter element": (framed({"inputs": [sized]}, b"\0\0\0\0a"), "1 bytes more"),
        "no UTF-8": (framed({"inputs": [sized]}, b"\1\0\0\0\xff"), "not UTF-8"),
        "a negative size of bytes": (
            framed({"inputs": [tensor(parameters={"binary_data_size": -5})]}, one),
            "binary_data_size",
        ),
        "shared memory": (
            {"json": {"inputs": [tensor(parameters={"shared_memory_region": "r"})]}},
            "shared_memory_region",
        ),
        "many rows": (in_bytes(["a"], [2**31 - 1]), "at most 512"),
    }


@pytest.mark.anyio
@pytest.mark.parametrize("name", bodies())
async def test_a_body_that_is_refused(fake: httpx.AsyncClient, name: str) -> None:
    arguments, says = bodies()[name]
    response = await fake.post(f"{MODEL}/infer", **arguments)
    assert (response.status_code, response.json().keys()) == (400, {"error"})
    assert says in response.json()["error"]


@pytest.mark.anyio
async def test_what_clients_send_is_taken(fake: httpx.AsyncClient) -> None:
    said = {"content_type": "str"}
    for arguments in (
        {"json": {"inputs": [tensor(data=["a"], parameters=said)]}},
        {"content": json.dumps(in_json(["a"], [1]))},
        in_bytes(["a" * 30000] * 3, [3, 1], parameters={"truncate": True}),
    ):
        found = tensors(await fake.post(f"{MODEL}/infer", **arguments))
        assert found["pooled"].shape[1] == 128
