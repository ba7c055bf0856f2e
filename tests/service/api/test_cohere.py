"""Requests, replies and errors in Cohere's form."""

from __future__ import annotations

import base64
import json
import string
from typing import Any

import numpy as np
import pytest
from sentence_transformers.util import quantize_embeddings
from transformers import AutoTokenizer

from model.artifact.manifest import Artifact
from service.api.cohere import meta, searched
from service.api.drop_in.embedding import FORMS, EmbeddingType
from service.engines.onnx import OnnxEngine
from service.inference.timings import Timings, Warnings
from tests.service.harness import Client, serving
from tests.service.several import variant

pytestmark = pytest.mark.anyio


EMBED = "/v2/embed"
EMBEDDED = ["What is Deep Learning?", "naïve café 😀", "a b c d e f g h"]
EMBED_BODY: dict[str, Any] = {
    "model": "embed-v4.0",
    "input_type": "search_document",
    "texts": EMBEDDED,
}


async def floats(client: Client, **fields: Any) -> np.ndarray:
    """Return the vectors of a reply as `float`, `[B, D]`."""
    answer = await client.post(EMBED, json=EMBED_BODY | fields)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["embeddings"]["float"], np.float32)


async def own(client: Client, inputs: Any, **fields: Any) -> np.ndarray:
    """Return the vectors of `/encode`, which other tests compare with oracles."""
    body = {"inputs": inputs, "outputs": ["pooled"], "normalize": True, **fields}
    results = (await client.post("/encode", json=body)).json()["results"]
    return np.array([one["pooled"] for one in results], np.float32)


async def test_a_reply_has_every_type(client: Client) -> None:
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    answer = await client.post(EMBED, json=EMBED_BODY | {"embedding_types": [*types, "float"]})
    reply = answer.json()
    assert reply.keys() == {"id", "response_type", "embeddings", "texts", "meta"}
    assert (reply["response_type"], reply["texts"]) == ("embeddings_by_type", EMBEDDED)
    tokens = int(answer.headers["x-compute-tokens"])
    units = {"input_tokens": tokens}
    assert reply["meta"].items() >= {"api_version": {"version": "2"}, "billed_units": units}.items()
    assert list(reply["embeddings"]) == types
    found = {name: reply["embeddings"][name] for name in types}
    expected = await own(client, EMBEDDED)
    np.testing.assert_allclose(found["float"], expected, atol=1e-6)
    np.testing.assert_allclose(np.array(found["int8"]) / 127, expected, atol=0.5 / 127 + 1e-6)
    np.testing.assert_array_equal(np.array(found["uint8"]), np.array(found["int8"]) + 128)
    for name in ("binary", "ubinary"):
        packed = quantize_embeddings(np.array(found["float"], np.float32), name)
        np.testing.assert_array_equal(found[name], packed)
    decoded = [np.frombuffer(base64.b64decode(one), "<f4") for one in found["base64"]]
    np.testing.assert_array_equal(decoded, np.array(found["float"], np.float32))


async def test_the_first_version_gives_bare_vectors_where_no_type_is_named(client: Client) -> None:
    """As Cohere's `EmbedFloatsResponse`; null types are none."""
    for fields in ({}, {"embedding_types": None}):
        reply = (await client.post("/v1/embed", json=EMBED_BODY | fields)).json()
        assert reply.keys() == {"id", "response_type", "embeddings", "texts", "meta"}
        assert (reply["response_type"], reply["texts"]) == ("embeddings_floats", EMBEDDED)
        assert reply["meta"]["api_version"] == {"version": "1"}
        np.testing.assert_array_equal(
            np.array(reply["embeddings"], np.float32), await floats(client)
        )


async def test_the_first_version_gives_types_that_are_named(client: Client) -> None:
    body = EMBED_BODY | {"embedding_types": ["float", "int8"]}
    first, second = [(await client.post(url, json=body)).json() for url in ("/v1/embed", EMBED)]
    assert first["response_type"] == second["response_type"] == "embeddings_by_type"
    assert first["embeddings"] == second["embeddings"]
    assert first["meta"]["api_version"] == {"version": "1"}


async def test_dimensions_are_cut_and_then_normalised(client: Client) -> None:
    found, whole = await floats(client, output_dimension=8), await own(client, EMBEDDED)
    first = whole[:, :8]
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)


async def test_texts_are_cut_on_the_side_asked_for(client: Client, small_checkpoint: Any) -> None:
    """To `max_tokens` or what fits; the end by default, none with NONE."""
    text = " ".join(string.ascii_lowercase[n * n % 26] for n in range(600))
    for truncate, side in (("END", "right"), ("START", "left"), (None, "right")):
        reference = AutoTokenizer.from_pretrained(small_checkpoint, truncation_side=side)
        asked = {} if truncate is None else {"truncate": truncate}
        for most in (7, None):
            ids = reference(text, truncation=True, max_length=most or 512)["input_ids"]
            kept = reference.decode(ids, skip_special_tokens=True)
            found = await floats(client, texts=[text], max_tokens=most, **asked)
            np.testing.assert_allclose(found, await own(client, kept), atol=2e-5)
    for fields in ({"max_tokens": 7}, {}):
        refused = await client.post(
            EMBED, json=EMBED_BODY | {"texts": [text], "truncate": "NONE", **fields}
        )
        assert refused.status_code == 400
        assert "tokens" in refused.json()["message"]


async def test_input_types_choose_the_checkpoints_prompts(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    """The prompts are sentence-transformers' own; without named prompts there is none."""
    prompts = {"query": "query: ", "passage": "passage: ", "clustering": "cluster: "}
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": prompts})
    changed = variant(artifact, "prompted", 128, sentence=sentence)
    expected = {
        "search_query": "query: ",
        "search_document": "passage: ",
        "clustering": "cluster: ",
        "classification": "",
    }
    async with serving(changed, onnx_engine) as client:
        for kind, prefix in expected.items():
            found = await floats(client, input_type=kind)
            same = await own(client, [prefix + text for text in EMBEDDED])
            np.testing.assert_allclose(found, same, atol=1e-6)
        texts = [{"content": [{"type": "text", "text": text}]} for text in EMBEDDED]
        found = await floats(client, input_type="search_query", texts=None, inputs=texts)
        np.testing.assert_allclose(found, await floats(client, input_type="search_query"))


RANGE = np.array([[-128.5], [126.5]]) / 127
"""Range of sentence-transformers' buckets with which its floor becomes rounding."""


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Return unit vectors, one of them along an axis."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 384), np.float32)
    rows[0] = 0
    rows[0, 3] = -1
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def read(name: EmbeddingType, vectors: np.ndarray) -> np.ndarray:
    return np.array([json.loads(b"".join(FORMS[name].pieces(vector))) for vector in vectors])


def test_8_bits_are_sentence_transformers(vectors: np.ndarray) -> None:
    ranges = np.repeat(RANGE, vectors.shape[1], axis=1)
    for name in ("int8", "uint8"):
        found, expected = read(name, vectors), quantize_embeddings(vectors, name, ranges)
        assert np.mean(found != expected) < 1e-3  # products halfway between two integers
        assert np.abs(found - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("name", FORMS)
def test_predicted_bytes_are_enough(vectors: np.ndarray, name: EmbeddingType) -> None:
    form = FORMS[name]
    assert all(
        len(b"".join(form.pieces(vector))) <= form.feature_bytes * 384 + 4 for vector in vectors
    )


@pytest.mark.parametrize(("documents", "units"), [(1, 1), (100, 1), (101, 2)])
def test_a_unit_of_search_has_up_to_a_hundred_documents(documents: int, units: int) -> None:
    """https://docs.cohere.com/docs/how-does-cohere-pricing-work"""
    meta = searched("2", documents, Timings(7, 0.0, 0.0))
    assert meta == {"api_version": {"version": "2"}, "billed_units": {"search_units": units}}


def test_warnings_are_sentences() -> None:
    timings = Timings(7, 0.0, 0.0, warnings=Warnings(truncated=1))
    warnings = ["1 text was cut to the most tokens"]
    assert meta("2", {}, timings)["warnings"] == searched("2", 1, timings)["warnings"] == warnings
