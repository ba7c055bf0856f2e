"""`POST /v2/models/{model}/infer` gives what /encode and /attention give, in either form."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.api.kserve.outputs import DATATYPES, HEAD_VECTORS
from service.api.native.attention import maps
from service.engines.onnx import OnnxEngine
from service.inference.attention import stream
from tests.service.api.kserve.wire import MODEL, framed, in_bytes, in_json, tensors
from tests.service.harness import serving

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
    names = [n for n in DATATYPES if "attention" not in n and n not in HEAD_VECTORS]
    options = {"layer": 1, "pooling": "cls", "normalize": False, "dimensions": 5}
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
