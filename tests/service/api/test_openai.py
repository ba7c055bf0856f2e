"""Requests, replies and errors in OpenAI's form, with fields from Jina and vLLM."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiktoken
from pydantic import TypeAdapter

from model.artifact.manifest import MANIFEST, Artifact
from service.api.infinity import NOT_LOADED
from service.api.openai import EmbeddingInputs
from service.engines.onnx import OnnxEngine
from service.inference.tokenization.inputs import Picture, TokenIds
from tests.service.api.tei.tasks import LABELS
from tests.service.harness import Client, serving
from tests.service.inference.tokenization.test_file_tokenizer import BYTES
from tests.service.repositories import add, encode, serving_repository
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


async def token_ids(client: httpx.AsyncClient) -> list[list[int]]:
    """Return the ids of each text, special tokens included."""
    body = {"inputs": TEXTS, "outputs": ["pooled"]}
    return [one["token_ids"] for one in (await client.post("/encode", json=body)).json()["results"]]


async def test_ids_of_the_model_are_its_texts(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    """With their special tokens or without; and they are counted."""
    async with serving(artifact, onnx_engine, token_ids="model") as client:
        ids, expected = await token_ids(client), await vectors(client, TEXTS)
        found = await vectors(client, ids)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        bare = [one[1:-1] for one in ids]
        np.testing.assert_allclose(await vectors(client, bare), expected, atol=1e-6)
        np.testing.assert_allclose(await vectors(client, bare[0]), expected[:1], atol=1e-6)
        mixed = await vectors(client, [ids[0], TEXTS[1]])
        np.testing.assert_allclose(mixed, expected[:2], atol=1e-6)
        answer = await client.post(URL, json={"input": [bare[0], [7592]]})
        assert answer.json()["usage"]["prompt_tokens"] == len(ids[0]) + 3


async def test_ids_that_no_text_has_are_computed_as_they_are(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    """A word piece that continues no word; decoded, it would be read as other tokens."""
    async with serving(artifact, onnx_engine, token_ids="model") as client:
        (found,) = (await client.post("/tokenize", json={"inputs": "embeddings"})).json()
        continuing = found[2]["id"]
        answer = await client.post(URL, json={"input": [continuing]})
        assert answer.json()["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([10**6], "input[0] has the token id 1000000"),
        ([-1], "input: token id -1 is negative"),
        ([101, 7592], "some special tokens of the model and not all"),
        ([7592] * 511, "input[0] has 513 tokens; at most 512 fit"),
    ],
)
async def test_ids_that_cannot_be_computed_are_refused(
    artifact: Artifact, onnx_engine: OnnxEngine, given: list[int], says: str
) -> None:
    async with serving(artifact, onnx_engine, token_ids="model") as client:
        answer = await client.post(URL, json={"input": given})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert says in answer.json()["error"]["message"]
        cut = {"input": [7592] * 511, "truncate_prompt_tokens": -1}
        assert (await client.post(URL, json=cut)).json()["usage"]["prompt_tokens"] == 512


async def test_ids_of_openai_are_decoded(
    artifact: Artifact, onnx_engine: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: BYTES)
    async with serving(artifact, onnx_engine, token_ids="cl100k") as client:
        expected = await vectors(client, TEXTS)
        found = await vectors(client, [BYTES.encode(text) for text in TEXTS])
        np.testing.assert_allclose(found, expected, atol=1e-6)
        many = [BYTES.encode("the water " * 20)] * 9  # more than are decoded on the loop
        assert len(await vectors(client, many)) == 9
        answer = await client.post(URL, json={"input": ["a", [10**6]]})
        assert "input[1]: a token id is not of cl100k_base" in answer.text


PROMPTS = {"query": "query: ", "document": "passage: ", "text-matching": "same? "}


@pytest.fixture(scope="module")
async def prompted(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[Client]:
    """Yield a client of the same model with prompts."""
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": PROMPTS})
    size = artifact.manifest.config.hidden_size
    async with serving(variant(artifact, "prompted", size, sentence=sentence), onnx_engine) as it:
        yield it


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"task": "retrieval.query"}, "query: "),
        ({"task": "retrieval.passage"}, "passage: "),
        ({"task": "text-matching"}, "same? "),
        ({"task": "query"}, "query: "),
        ({"task": "classification"}, ""),
        ({"task": None}, ""),
    ],
)
async def test_a_task_is_the_checkpoints_prompt(
    prompted: Client, fields: dict[str, Any], prompt: str
) -> None:
    expected = await vectors(prompted, [prompt + text for text in TEXTS])
    np.testing.assert_allclose(await vectors(prompted, TEXTS, **fields), expected, atol=1e-6)


async def read_request(client: httpx.AsyncClient, **fields: Any) -> list[Any]:
    answer = await client.post(URL, json={"input": TEXTS, **fields})
    assert answer.status_code == 200, answer.text
    return [one["embedding"] for one in answer.json()["data"]]


async def test_bits_are_the_signs(client: httpx.AsyncClient) -> None:
    """numpy is the oracle; `binary` is 128 less, as Jina and Cohere have it."""
    expected = np.packbits(await vectors(client, TEXTS) > 0, axis=1)
    np.testing.assert_array_equal(await read_request(client, embedding_type="ubinary"), expected)
    signed = expected.astype(int) - 128
    np.testing.assert_array_equal(await read_request(client, embedding_type="binary"), signed)


async def test_types_of_floats(client: httpx.AsyncClient) -> None:
    expected = await vectors(client, TEXTS)
    np.testing.assert_array_equal(await vectors(client, TEXTS, embedding_type="float"), expected)
    for fields in (
        {"embedding_type": "base64"},
        {"embedding_type": "float", "encoding_format": "base64"},
    ):
        assert all(isinstance(one, str) for one in await read_request(client, **fields))
        np.testing.assert_array_equal(await vectors(client, TEXTS, **fields), expected)


async def test_lengths_are_the_checkpoints_where_unit_vectors_are_not_wanted(
    client: httpx.AsyncClient,
) -> None:
    body = {"inputs": TEXTS, "outputs": ["pooled"], "normalize": False}
    results = (await client.post("/encode", json=body)).json()["results"]
    expected = np.array([one["pooled"] for one in results], np.float32)
    for fields in ({"normalized": False}, {"use_activation": False}):
        np.testing.assert_allclose(await vectors(client, TEXTS, **fields), expected, atol=1e-6)


async def test_long_texts_are_cut_where_that_is_asked_for(client: httpx.AsyncClient) -> None:
    long = "a " * 600
    fits = await vectors(client, "a " * 510)
    for fields in ({"truncate": True}, {"truncate_prompt_tokens": -1}):
        np.testing.assert_allclose(await vectors(client, long, **fields), fits, atol=1e-6)
    few = await vectors(client, "a b c d e", truncate_prompt_tokens=4)
    np.testing.assert_allclose(few, await vectors(client, "a b"), atol=1e-6)
    left = {"truncate_prompt_tokens": 4, "truncation_side": "left"}
    few = await vectors(client, "a b c d e", **left)
    np.testing.assert_allclose(few, await vectors(client, "d e"), atol=1e-6)


SCHEMA: TypeAdapter[Any] = TypeAdapter(EmbeddingInputs)
IMAGE_URL = "https://example.org/a.png"


def test_texts_ids_and_objects_may_be_mixed() -> None:
    given: list[Any] = [{"text": "a"}, "b", [1, 2], {"image": "QQ=="}, {"image": IMAGE_URL}]
    *others, file, address = SCHEMA.validate_python(given)
    assert others == ["a", "b", TokenIds((1, 2))]
    assert (file.source, file.field) == ("QQ==", "input[3].image")
    assert address.source == IMAGE_URL
    (picture,) = SCHEMA.validate_python({"image": "data:image/png;base64,QQ=="})
    assert isinstance(picture, Picture)


@pytest.mark.parametrize(
    "value", [{}, {"text": "a", "image": "QQ=="}, {"image": "QQ==", "x": 1}, {"text": 1}]
)
def test_an_object_has_one_text_or_picture(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"input\[1\] is not an object with one of `text` and"):
        SCHEMA.validate_python(["a", value])


async def test_the_list_has_openais_form(artifact: Artifact) -> None:
    """https://platform.openai.com/docs/api-reference/models/list"""
    names = ["z/first", "a", "a b"]
    artifacts = [variant(artifact, name, 8) for name in names]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        answer = await client.get("/v1/models")
        reply = answer.json()
        assert (answer.status_code, reply.keys()) == (200, {"object", "data"})
        assert reply["object"] == "list"
        assert [one["id"] for one in reply["data"]] == names
        for one in reply["data"]:
            assert one.keys() == {"id", "object", "created", "owned_by", "outputs", "modalities"}
            assert (one["object"], type(one["owned_by"])) == ("model", str)
            assert type(one["created"]) is int
            assert 0 < time.time() - one["created"] < 10 * 365 * 24 * 3600


async def test_a_model_is_found_by_its_name(artifact: Artifact) -> None:
    """Names may have slashes; another is OpenAI's 404, also where one model alone is served."""
    artifacts = [variant(artifact, name, 8) for name in ("z/first", "a b")]
    for served in (artifacts, artifacts[:1]):
        async with serving(served, [fake_of(one) for one in served]) as client:
            for one in (await client.get("/v1/models")).json()["data"]:
                assert (await client.get(f"/v1/models/{one['id']}")).json() == one
            missing = await client.get("/v1/models/first")
            assert (missing.status_code, missing.json()["error"]["code"]) == (
                404,
                "model_not_found",
            )


async def test_aliases_are_listed_and_answered_by_their_model(artifact: Artifact) -> None:
    """A reply names the model that computed it; `--served-model-name` names it anew."""
    artifacts = [variant(artifact, "a", 8), variant(artifact, "b", 16)]
    settings = {
        "served_model_name": ("z/first", "second"),
        "alias": ("text-embedding-3-small=second",),
    }
    async with serving(artifacts, [fake_of(one) for one in artifacts], **settings) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        names = ["z/first", "second", "text-embedding-3-small"]
        assert [one["id"] for one in listed] == names
        for one in listed:
            assert (await client.get(f"/v1/models/{one['id']}")).json() == one
        assert [one["id"] for one in (await client.get("/models")).json()["data"]] == names
        body = {"input": "a", "model": "text-embedding-3-small"}
        answer = await client.post("/v1/embeddings", json=body)
        assert len(answer.json()["data"][0]["embedding"]) == 16
        assert answer.json()["model"] == answer.headers["x-model"] == "second"
        missing = await client.post("/v1/embeddings", json=body | {"model": "a"})
        assert missing.status_code == 404
        assert "text-embedding-3-small" in missing.json()["error"]["message"]


async def test_models_that_are_loaded_on_demand_are_listed(
    tmp_path: Path, tiny_artifact: Artifact
) -> None:
    """Both lists have them before and after the load, with the time of the newest version."""
    for place, created in (("a", 1000), ("org/b/1", 2000), ("org/b/2", 3000)):
        os.utime(add(tmp_path, place, tiny_artifact) / MANIFEST, (created, created))
    expected = [("a", 1000), ("org/b", 3000)]
    async with serving_repository(tmp_path) as client:
        for outputs, backends in (
            ([None, None], [NOT_LOADED, NOT_LOADED]),
            ([["tokens", "pooled"], None], ["fake", NOT_LOADED]),
        ):
            listed = (await client.get("/v1/models")).json()["data"]
            assert [(one["id"], one["created"]) for one in listed] == expected
            assert [one["outputs"] for one in listed] == outputs
            assert (await client.get("/v1/models/org/b")).json() == listed[1]
            infinitys = (await client.get("/models")).json()["data"]
            assert [(one["id"], one["created"]) for one in infinitys] == expected
            assert [one["backend"] for one in infinitys] == backends
            assert (await encode(client, listed[0]["id"])).status_code == 200
    async with serving_repository(tmp_path, on_demand=False) as client:
        assert (await client.get("/v1/models")).json()["data"] == []
        assert (await client.get("/v1/models/a")).status_code == 404


async def test_a_missing_key_is_told_in_it(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact), api_keys="k") as client:
        refused = await client.get("/v1/models")
        assert (refused.status_code, refused.json().keys()) == (401, {"error"})
        assert refused.json()["error"].keys() == {"message", "type", "param", "code"}
        assert (await client.post("/v1/models", auth=("", "k"))).json().keys() == {"error"}
