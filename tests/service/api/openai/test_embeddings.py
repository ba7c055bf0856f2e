"""`POST /v1/embeddings` in OpenAI's form."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from model.artifact.manifest import Artifact
from tests.service.api.tei.tasks import LABELS, SPARSE, serving_task
from tests.service.harness import serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
URL = "/v1/embeddings"
TEXTS = ["What is Deep Learning?", "naïve café 😀", "a b c"]


async def vectors(client: httpx.AsyncClient, given: Any, **fields: Any) -> np.ndarray:
    """Check the form of a reply, and return its vectors `[B, D]`."""
    answer = await client.post(URL, json={"input": given, "model": "any", **fields})
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply.keys() - {"warnings"} == {"object", "data", "model", "usage", "system_fingerprint"}
    assert reply["object"] == "list"
    assert reply["system_fingerprint"] == answer.headers["x-model-fingerprint"]
    assert reply["usage"].keys() == {"prompt_tokens", "total_tokens"}
    tokens = reply["usage"]["prompt_tokens"]
    assert reply["usage"]["total_tokens"] == tokens == int(answer.headers["x-compute-tokens"])
    assert [one["index"] for one in reply["data"]] == list(range(len(reply["data"])))
    assert all(one.keys() == {"object", "index", "embedding"} for one in reply["data"])
    assert {one["object"] for one in reply["data"]} == {"embedding"}
    return np.stack([read(one["embedding"]) for one in reply["data"]])


def read(vector: list[float] | str) -> np.ndarray:
    """Read a vector as the official client does."""
    if isinstance(vector, str):
        return np.frombuffer(base64.b64decode(vector), "<f4")
    return np.array(vector, np.float32)


async def test_vectors_are_those_of_encode(client: httpx.AsyncClient) -> None:
    """This holds for one text and for many, in both encodings."""
    body = {"inputs": TEXTS, "outputs": ["pooled"], "normalize": True}
    results = (await client.post("/encode", json=body)).json()["results"]
    expected = np.array([one["pooled"] for one in results], np.float32)
    found = await vectors(client, TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(await vectors(client, TEXTS, encoding_format="base64"), found)
    np.testing.assert_allclose(await vectors(client, TEXTS[0]), expected[:1], atol=1e-6)
    np.testing.assert_allclose(await vectors(client, TEXTS[0], user="u"), expected[:1], atol=1e-6)


async def test_dimensions_are_cut_and_then_normalised(client: httpx.AsyncClient) -> None:
    whole = (await vectors(client, TEXTS))[:, :5]
    cut = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    np.testing.assert_allclose(await vectors(client, TEXTS, dimensions=5), cut, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "input", "required"),
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": ["a", ""]}, "input", "input[1] is empty"),
        ({"input": [[101], []]}, "input", "input[1] is empty"),
        ({"input": {"a": 1}}, "input", "input[0] is not an object with one of"),
        ({"input": ["a", 1]}, "input", "list"),
        ({"input": [1, "a"]}, "input", "list"),
        ({"input": [True]}, "input", "list"),
        ({"input": ["a"] * 513}, "input", "at most 512"),
        ({"input": "a " * 600}, "input", "at most 512"),
        ({"input": "a", "dimensions": 0}, "dimensions", "1 … 128"),
        ({"input": "a", "dimensions": 129}, "dimensions", "1 … 128"),
        ({"input": "a", "dimensions": "5"}, "dimensions", "integer"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "base64"),
        ({"input": "a", "model": 5}, "model", "string"),
    ],
)
async def test_refusals_name_the_field(
    client: httpx.AsyncClient, body: dict[str, Any], param: str, says: str
) -> None:
    answer = await client.post(URL, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert says in error["message"]


async def test_openais_own_limit_holds_where_the_service_takes_more(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact), max_client_batch_size=4000) as client:
        answer = await client.post(URL, json={"input": ["a"] * 2049})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert "at most 2048" in answer.json()["error"]["message"]


@pytest.mark.parametrize("task", [LABELS, SPARSE])
async def test_a_model_without_vectors_of_texts_is_424(artifact: Artifact, task: Any) -> None:
    async with serving_task(artifact, task) as client:
        answer = await client.post(URL, json={"input": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (424, "no_embeddings")


async def test_the_model_is_chosen_by_name(artifact: Artifact) -> None:
    """Without a name the first that gives vectors answers; none of a name is OpenAI's 404."""
    models = [variant(artifact, "ranks", 8, LABELS), variant(artifact, "b/eight", 8)]
    async with serving(models, [fake_of(one) for one in models]) as client:
        assert (await client.post(URL, json={"input": "a"})).json()["model"] == "b/eight"
        answer = await client.post(URL, json={"input": "a", "model": "none"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (
            404,
            "model_not_found",
            "model",
        )
