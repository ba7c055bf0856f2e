"""`POST /v2/models/{model}/infer` gives what /encode and /attention give, in either form."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.api.kserve.infer import MapsWriter
from service.api.kserve.outputs import TENSORS, Output, head, tails, text_values
from service.api.native.attention import maps
from service.engines.onnx import OnnxEngine
from service.inference.attention import stream
from service.inference.attention.maps import LayerMaps, TextSummary
from tests.service.api.kserve.wire import MODEL, framed, in_bytes, in_json, tensors
from tests.service.harness import body_of, serving, tokenized

pytestmark = pytest.mark.anyio


TEXTS = ["The animal didn't cross the street.", "", "It was töö tired 🙂"]
SAFETENSORS = {"accept": "application/vnd.safetensors"}


async def native(client: httpx.AsyncClient, route: str, **body: Any) -> dict[str, Any]:
    reply = await client.post(route, json=body, headers=SAFETENSORS)
    assert reply.status_code == 200
    return load(reply.content)


def wanted(*names: str, binary: bool = True) -> list[dict[str, Any]]:
    return [{"name": name, "parameters": {"binary_data": binary}} for name in names]


async def test_pooled_by_default_in_every_form(client: httpx.AsyncClient) -> None:
    expected = await native(client, "/encode", inputs=TEXTS)
    nested = [[text] for text in TEXTS]
    for arguments in (
        {"json": in_json(TEXTS, [3])},
        {"json": in_json(TEXTS, [3, 1])},
        {"json": in_json(nested, [3, 1], parameters={"binary_data_output": True})},
        in_bytes(TEXTS, [3]),
        in_bytes(TEXTS, [3, 1], parameters={"binary_data_output": True}),
    ):
        reply = await client.post(f"{MODEL}/infer", **arguments)
        found = tensors(reply)
        assert found.keys() == {"pooled"}
        np.testing.assert_allclose(found["pooled"], expected["pooled"], atol=1e-6)
        assert int(reply.headers["x-compute-tokens"]) == expected["cu_seqlens"][-1]


async def test_every_output_of_vectors(client: httpx.AsyncClient) -> None:
    names = [n for n in TENSORS if not n.startswith(("attention", "sparse", "multivector"))]
    options = {"layer": 1, "pooling": "cls", "normalize": True, "dimensions": 5}
    expected = await native(client, "/encode", inputs=TEXTS, **options)
    results = (await client.post("/encode", json={"inputs": TEXTS, "outputs": ["pooled"]})).json()
    for binary in (True, False):
        body = in_json(TEXTS, [3], outputs=wanted(*names, binary=binary), parameters=options)
        found = tensors(await client.post(f"{MODEL}/infer", json=body))
        assert [*found] == names
        assert found["pooled"].shape == (3, 5)
        for name in ("pooled", "embeddings"):
            np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
        for name in ("cu_seqlens", "token_ids", "segment_ids", "truncated"):
            np.testing.assert_array_equal(found[name], expected[name])
        for name in ("tokens", "offsets"):
            flat = [value for result in results["results"] for value in result[name]]
            np.testing.assert_array_equal(found[name], np.array(flat, found[name].dtype))


@pytest.mark.parametrize("streamed", [False, True])
async def test_attention_of_heads(
    client: httpx.AsyncClient, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streamed:
        monkeypatch.setattr(maps, "WHOLE_BYTES", 0)
        monkeypatch.setattr(stream, "GROUP_BYTES", 0)
    expected = await native(client, "/attention", inputs=TEXTS, layers=[1, 0], heads=[1])
    vectors = await native(client, "/encode", inputs=TEXTS)
    for binary, layers, names in (
        (True, [-1, 0], ("pooled", "attention", "attention_shapes")),
        (False, "1, 0", ("attention", "attention_shapes", "pooled")),
        (True, "1,0", ("attention_shapes", "attention")),
    ):
        given = {"layers": layers, "heads": 1}
        body = in_json(TEXTS, [3], outputs=wanted(*names, binary=binary), parameters=given)
        reply = await client.post(f"{MODEL}/infer", json=body)
        found = tensors(reply)
        assert [*found][-1] == "attention"
        assert ("content-length" in reply.headers) == (binary or not streamed)
        ends = np.cumsum(found["attention_shapes"].prod(axis=1))
        assert ends[-1] == len(found["attention"])
        for index, flat in enumerate(np.split(found["attention"], ends[:-1])):
            own = flat.reshape(found["attention_shapes"][index])
            np.testing.assert_allclose(own, expected[f"attention.{index}"], atol=1e-6)
        if "pooled" in names:
            np.testing.assert_allclose(found["pooled"], vectors["pooled"], atol=1e-6)


async def test_pairs(client: httpx.AsyncClient) -> None:
    expected = await native(client, "/encode", inputs=[["a", "b c"], ["d", ""]])
    outputs = wanted("pooled", "segment_ids")
    flat, nested = ["a", "b c", "d", ""], [["a", "b c"], ["d", ""]]
    for arguments in (
        in_bytes(flat, [2, 2], outputs=outputs),
        {"json": in_json(flat, [2, 2], outputs=outputs)},
        {"json": in_json(nested, [2, 2], outputs=outputs)},
    ):
        found = tensors(await client.post(f"{MODEL}/infer", **arguments))
        np.testing.assert_array_equal(found["segment_ids"], expected["segment_ids"])
        np.testing.assert_allclose(found["pooled"], expected["pooled"], atol=1e-6)


async def test_names_versions_and_ids(client: httpx.AsyncClient, artifact: Artifact) -> None:
    body = in_json(["a"], [1], id="mine")
    name = artifact.manifest.model
    for path in (f"{name}/infer", f"{name}/versions/1/infer", "other%2Fname/infer"):
        response = await client.post(f"/v2/models/{path}", json=body)
        reply = response.json()
        assert (reply["id"], reply["model_version"]) == ("mine", "1")
        assert reply["model_name"] == name
        assert ("x-model" in response.headers) == path.startswith("other")
    assert (await client.post(f"{MODEL}/versions/2/infer", json=body)).status_code == 404


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"parameters": {"layers": [0]}}, "parameters.layers applies to attention"),
    ({"outputs": wanted("tokens"), "parameters": {"pooling": "cls"}}, "pooled or embeddings"),
    ({"outputs": wanted("pooled", "pooled")}, "twice"),
    ({"outputs": wanted("logits")}, "outputs.0.name"),
    ({"outputs": wanted("attention"), "parameters": {"heads": 9}}, "heads: 9"),
    ({"outputs": wanted("attention"), "parameters": {"heads": "1, x"}}, "heads"),
    ({"outputs": [*wanted("pooled"), *wanted("attention", binary=False)]}, "in JSON"),
    ({"parameters": {"layer": 7}}, "layer 7"),
    ({"parameters": {"priority": 1}}, "parameters.priority"),
    ({"parameters": {"truncate": 1}}, "parameters.truncate"),
    ({"parameters": {"prompt_name": "no"}}, "prompt"),
    ({"inputs": []}, "inputs"),
    ({"id": 1}, "id"),
]


@pytest.mark.parametrize(("more", "says"), WRONG)
async def test_what_cannot_be_answered(
    client: httpx.AsyncClient, more: dict[str, Any], says: str
) -> None:
    response = await client.post(f"{MODEL}/infer", json=in_json(["a"], [1]) | more)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    assert says in response.json()["error"]


async def test_limits_and_deadlines(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    limits = {"max_client_batch_size": 3, "max_response_bytes": 2000}
    long = "word " * 600
    async with serving(artifact, onnx_engine, **limits) as client:
        for arguments, status, says in (
            ({"json": in_json(["a"] * 4, [4])}, 400, "at most 3"),
            (in_bytes([""] * 4, [4]), 400, "at most 3"),
            ({"json": in_json(["a", "b"], [2])}, 413, "more than 2000"),
            ({"json": in_json([long], [1])}, 400, "text[0]"),
            ({"json": in_json(["a b"], [1], outputs=wanted("embeddings"))}, 413, "more than 2000"),
            ({"json": in_json(["a b " * 9], [1], outputs=wanted("attention"))}, 413, "2000"),
            ({"json": in_json(["a"], [1], parameters={"timeout": 0})}, 503, ""),
            (framed({}, b"") | {"headers": {"content-encoding": "gzip"}}, 415, "compressed"),
            ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "octet-stream"),
        ):
            response = await client.post(f"{MODEL}/infer", **arguments)
            assert response.status_code == status, response.text
            assert says in response.json()["error"]
            assert ("retry-after" in response.headers) == (status == 503)
        small = in_json(["a"], [1], outputs=wanted("pooled"))
        assert tensors(await client.post(f"{MODEL}/infer", json=small))


async def test_vectors_that_the_model_lacks_are_refused(client: httpx.AsyncClient) -> None:
    body = in_json(["a"], [1], outputs=[{"name": "multivector"}])
    reply = await client.post(f"{MODEL}/infer", json=body)
    assert reply.status_code == 400
    assert "has no multivector: its outputs are tokens, pooled" in reply.json()["error"]


TOKENIZED = [tokenized(length) for length in (3, 1, 6)]
NAMES: tuple[Any, ...] = ("tokens", "offsets", "truncated", "cu_seqlens", "token_ids")
AWKWARD = np.array([[0.1, 1 / 3, -0.0], [1e-45, 3.4028235e38, -7.0000005e-5]], np.float32)


def output(name: Any, values: Any, *, binary: bool) -> Output:
    shape = values.shape if isinstance(values, np.ndarray) else (len(values),)
    return Output(name, shape, binary, values)


@pytest.mark.parametrize("most", [1, 4, 2**16])
def test_json(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.wire.json_pieces.PIECE", most)
    monkeypatch.setattr("service.api.kserve.outputs.ITEMS", most)
    values = {"pooled": AWKWARD} | {name: text_values(name, TOKENIZED) for name in NAMES}
    given = [output(name, value, binary=False) for name, value in values.items()]
    assert tails(given) == []
    reply = json.loads(b"".join(head({"id": "x"}, given)))
    assert reply["id"] == "x"
    for one, found in zip(given, reply["outputs"], strict=True):
        assert found.keys() == {"name", "datatype", "shape", "data"}
        assert len(b"".join(one.entry())) <= one.size
        own = np.array(values[one.name])
        np.testing.assert_array_equal(np.array(found["data"], own.dtype), own.reshape(-1))
        assert found["shape"] == list(own.shape)


def test_bytes() -> None:
    values = {"pooled": AWKWARD[:, ::-1]} | {name: text_values(name, TOKENIZED) for name in NAMES}
    given = [output(name, value, binary=True) for name, value in values.items()]
    reply = json.loads(b"".join(head({}, given)))
    for one, found, tail in zip(given, reply["outputs"], tails(given), strict=True):
        assert found["parameters"] == {"binary_data_size": len(tail)}
        assert len(tail) == one.nbytes < one.size
    floats, tokens, offsets, truncated, *_ = map(bytes, tails(given))
    assert floats == np.ascontiguousarray(AWKWARD[:, ::-1]).tobytes()
    assert tokens[:4] == len(TOKENIZED[0].tokens[0].encode()).to_bytes(4, "little")
    assert tokens[4:].startswith(TOKENIZED[0].tokens[0].encode())
    assert offsets == np.array(values["offsets"], "<i4").tobytes()
    assert truncated == b"\0\1\0"


def test_values_that_come_later_leave_the_json_open() -> None:
    later = Output("attention", (4,), binary=False)
    begun = b"".join(head({}, [output("pooled", AWKWARD, binary=False), later]))
    assert json.loads(begun + b"1,2,3,4]}]}")["outputs"][1]["data"] == [1, 2, 3, 4]
    json.loads(b"".join(head({}, [Output("attention", (4,), binary=True)])))


LAYERS = [np.full((1, size, size), size, np.float32) / 7 for size in (2, 2, 3, 3)]


@pytest.mark.parametrize("binary", [True, False])
def test_maps_stand_last_and_end_to_end(binary: bool) -> None:
    maps = Output("attention", (26,), binary)
    writer = MapsWriter(maps, "", keeps_back=True)
    writer.before = [] if binary else [*head({}, [maps])]
    parts = [*writer.start()]
    for number, layer in enumerate(LAYERS):
        found = LayerMaps(number // 2, {"attention": writer.dump(layer)}, {}, {})
        parts += writer.layer(found)
        if number % 2:
            parts += writer.text(TextSummary(number // 2, {}))
    reply = body_of([*parts, *writer.end()])
    expected = np.concatenate([layer.reshape(-1) for layer in LAYERS])
    if binary:
        assert reply == expected.tobytes()
    else:
        (attention,) = json.loads(reply)["outputs"]
        np.testing.assert_array_equal(np.array(attention["data"], np.float32), expected)
