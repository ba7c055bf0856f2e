"""Models, their repository, the server's metadata and probes, and malformed bodies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from model.artifact.manifest import Artifact
from service.api.kserve.infer import (
    InferParameters,
    InferRequest,
    InputTensor,
    elements,
    flattened,
    json_length,
    texts_of,
)
from service.api.kserve.models import ERRORS, STATUSES
from service.api.kserve.outputs import TENSORS
from service.api.wire.replies import PROBLEMS
from service.errors import ServiceError
from service.models.state import state_of
from service.system.distribution import version
from tests.service.api.kserve import wire
from tests.service.api.kserve.wire import MODEL, framed, in_bytes, in_json, tensors
from tests.service.harness import Client, serving
from tests.service.repositories import ADMIN, add, serving_repository
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


NAME = "sentence-transformers/all-MiniLM-L6-v2"


async def test_metadata_and_readiness_of_several(artifact: Artifact) -> None:
    artifacts = [variant(artifact, "a", 8), variant(artifact, NAME, 16)]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        for path in (NAME, NAME.replace("/", "%2F"), f"{NAME}/versions/1"):
            response = await client.get(f"/v2/models/{path}")
            reply = response.json()
            assert reply.keys() == {"name", "versions", "platform", "inputs", "outputs"}
            assert (reply["name"], reply["versions"]) == (NAME, ["1"])
            assert reply["platform"] == "onnxruntime_onnx"
            assert reply["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
            shapes = {output["name"]: output["shape"] for output in reply["outputs"]}
            of_task_heads = ("sparse", "multivector")
            assert [*shapes] == [name for name in TENSORS if not name.startswith(of_task_heads)]
            assert (shapes["embeddings"], shapes["pooled"]) == ([-1, 16], [-1, 16])
            assert (await client.get(f"/v2/models/{path}/ready")).content == b""
        body = in_json(["a"], [1])
        found = [(await client.post(f"/v2/models/{x}/infer", json=body)) for x in ("a", NAME)]
        assert [one.json()["outputs"][0]["shape"] for one in found] == [[1, 8], [1, 16]]
        for method, path in (("GET", "x"), ("GET", "x/ready"), ("POST", "x/infer")):
            unknown = await client.request(method, f"/v2/models/{path}", json=body)
            assert (unknown.status_code, unknown.json().keys()) == (404, {"error"})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "m/infer", 405),
        ("POST", "m", 405),
        ("POST", "m/ready", 405),
        ("GET", "m/config", 404),
        ("GET", "m/trace/setting", 404),
        ("GET", "m/versions/2", 404),
        ("GET", "m/versions/2/ready", 404),
        ("GET", "", 400),
    ],
)
async def test_what_is_not_there(
    client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await client.request(method, f"/v2/models/{path}")
    assert (response.status_code, response.json().keys()) == (status, {"error"})


async def test_a_model_is_not_ready_while_the_service_stops(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact)) as client:
        assert (await client.get("/v2/models/any/ready")).headers["x-model"] == "small"
        state_of(client.app).readiness.draining = True
        refused = await client.get("/v2/models/any/ready")
        assert (refused.status_code, refused.json().keys()) == (400, {"error"})


async def index(client: Client, **body: object) -> dict[str, str]:
    """Return the state of each model of one version."""
    reply = await client.post("/v2/repository/index", json=body, headers=ADMIN)
    return {entry["name"]: entry["state"] for entry in reply.json()}


async def test_index_load_infer_and_unload(tmp_path: Path, tiny_artifact: Artifact) -> None:
    for name in ("org/a", "b"):
        add(tmp_path, name, tiny_artifact)
    async with serving_repository(tmp_path, on_demand=False) as client:
        assert await index(client) == {"b": "UNAVAILABLE", "org/a": "UNAVAILABLE"}
        asked = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
        assert (await client.get("/v2/models/org/a/ready")).status_code == 404
        reply = await client.post(
            "/v2/repository/models/org/a/load", json={"parameters": {"version": "1"}}, headers=ADMIN
        )
        assert (reply.status_code, reply.content) == (200, b"")
        assert await index(client, ready=True) == {"org/a": "READY"}
        assert (await client.get("/v2/models/org/a/ready")).status_code == 200
        inferred = await client.post("/v2/models/org/a/infer", json=asked)
        assert inferred.json()["model_version"] == "1", inferred.text
        assert (await client.get("/v2/models/org/a/versions/2")).status_code == 404
        await client.post("/v2/repository/models/org/a/unload", headers=ADMIN)
        assert (await index(client))["org/a"] in {"UNAVAILABLE", "UNLOADING"}


async def test_errors_have_the_protocols_form(tmp_path: Path, tiny_artifact: Artifact) -> None:
    add(tmp_path, "a", tiny_artifact)
    async with serving_repository(tmp_path) as client:
        for path in ("/v2/repository/index", "/v2/repository/models/a/load"):
            assert (await client.post(path)).status_code == 401
        wrong = {"parameters": {"config": "{}"}}
        reply = await client.post("/v2/repository/models/a/load", json=wrong, headers=ADMIN)
        assert (reply.status_code, reply.json().keys()) == (400, {"error"})
        reply = await client.post("/v2/repository/models/c/load", headers=ADMIN)
        assert reply.status_code == 404
        assert "it has: a" in reply.json()["error"]


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


def test_every_status_is_in_the_document() -> None:
    statuses = map(int, PROBLEMS)
    assert {STATUSES.get(status, status) for status in statuses} == ERRORS.keys()


@pytest.mark.parametrize(
    ("given", "found"),
    [([0, -1], [0, -1]), ("0,-1", [0, -1]), (" 3 ", [3]), (2, [2]), (None, None)],
)
def test_lists_of_indices(given: Any, found: list[int] | None) -> None:
    asked = {"layers": given, "heads": given}
    assert InferParameters(**asked).heads == found
    assert jsonschema_rs.is_valid(InferParameters.model_json_schema(), asked)


@pytest.mark.parametrize("given", ["", "1,", "1;2", [], [1, 1], ["1"], True, {}])
def test_what_is_no_list_of_indices(given: Any) -> None:
    with pytest.raises(ValidationError):
        InferParameters(layers=given)
    assert not jsonschema_rs.is_valid(InferParameters.model_json_schema(), {"layers": given})


@pytest.mark.parametrize("given", [1.0, "1,1"])
def test_what_json_schema_takes_for_a_list_of_indices(given: Any) -> None:
    with pytest.raises(ValidationError):
        InferParameters(layers=given)


def test_an_outputs_own_form_counts_first() -> None:
    outputs = [{"name": "tokens", "parameters": {"binary_data": False}}, {"name": "pooled"}]
    body = in_json(["a"], [1], outputs=outputs, parameters={"binary_data_output": True})
    assert InferRequest.model_validate(body).wanted == {"tokens": False, "pooled": True}
    assert InferRequest.model_validate(in_json(["a"], [1])).wanted == {"pooled": False}


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
        json_length(said.encode(), 5)


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


@pytest.mark.parametrize("name", bodies())
async def test_a_body_that_is_refused(fake: httpx.AsyncClient, name: str) -> None:
    arguments, says = bodies()[name]
    response = await fake.post(f"{MODEL}/infer", **arguments)
    assert (response.status_code, response.json().keys()) == (400, {"error"})
    assert says in response.json()["error"]


async def test_what_clients_send_is_taken(fake: httpx.AsyncClient) -> None:
    said = {"content_type": "str"}
    for arguments in (
        {"json": {"inputs": [tensor(data=["a"], parameters=said)]}},
        {"content": json.dumps(in_json(["a"], [1]))},
        in_bytes(["a" * 30000] * 3, [3, 1], parameters={"truncate": True}),
    ):
        found = tensors(await fake.post(f"{MODEL}/infer", **arguments))
        assert found["pooled"].shape[1] == 128
