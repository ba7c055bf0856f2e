"""Vectors, sparse vectors, similarities and vocabulary in TEI's forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.requests import Request
from transformers import AutoTokenizer

from model.artifact.manifest import Artifact
from model.config.precision import Precision
from service.api.tei.vectors import TOKEN_BYTES, VocabularyQuery, vocabulary
from tests.service.api.tei.tasks import SPARSE, scores_of, serving_task
from tests.service.harness import exchange, reserved_replies, serving, state_of
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio


TEXTS = ["What is Deep Learning?", "naïve café 😀", "a b c"]
COMPUTE = {"x-compute-type", "x-compute-time", "x-compute-characters", "x-compute-tokens"}
TIMES = {"x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"}
LONG = "a b " * 300


async def embedded(client: httpx.AsyncClient, inputs: Any, **fields: Any) -> np.ndarray:
    answer = await client.post("/embed", json={"inputs": inputs, **fields})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json(), np.float32)


async def test_vectors_are_those_of_encode(client: httpx.AsyncClient) -> None:
    """Vectors are unit vectors by default; ids include their own special tokens."""
    body = {"inputs": TEXTS, "normalize": False}
    results = (await client.post("/encode", json=body)).json()["results"]
    pooled = np.array([one["pooled"] for one in results], np.float32)
    unit = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    ids = [one["token_ids"] for one in results]
    np.testing.assert_allclose(await embedded(client, TEXTS), unit, atol=1e-6)
    np.testing.assert_allclose(await embedded(client, TEXTS, normalize=False), pooled, atol=1e-5)
    np.testing.assert_allclose(await embedded(client, TEXTS[0]), unit[:1], atol=1e-6)
    np.testing.assert_allclose(await embedded(client, ids[0]), unit[:1], atol=1e-6)
    np.testing.assert_allclose(await embedded(client, [ids[0], TEXTS[1]]), unit[:2], atol=1e-6)
    cut = pooled[:, :7] / np.linalg.norm(pooled[:, :7], axis=1, keepdims=True)
    np.testing.assert_allclose(await embedded(client, TEXTS, dimensions=7), cut, atol=1e-6)
    raw = await embedded(client, TEXTS, dimensions=7, normalize=False)
    np.testing.assert_allclose(raw, pooled[:, :7], atol=1e-5)
    answer = await client.post("/embed_all", json={"inputs": [ids[0], TEXTS[2]]})
    for found, one in zip(answer.json(), [results[0], results[2]], strict=True):
        np.testing.assert_allclose(found, one["embeddings"], atol=1e-5)


async def test_headers_are_teis(client: httpx.AsyncClient) -> None:
    answer = await client.post("/embed", json={"inputs": ["naïve", [101, 102]]})
    assert answer.headers.keys() >= COMPUTE | TIMES
    assert answer.headers["x-compute-type"] == "cpu+optimized"
    assert answer.headers["x-compute-characters"] == "7"
    assert 0 <= int(answer.headers["x-compute-time"]) <= int(answer.headers["x-total-time"])


@pytest.mark.parametrize("setting", [True, False])
async def test_long_texts_are_cut_as_the_setting_says(artifact: Artifact, setting: bool) -> None:
    async with serving(artifact, fake_of(artifact), auto_truncate=setting) as client:
        assert (await client.get("/info")).json()["auto_truncate"] is setting
        for truncate in ({}, {"truncate": None}):
            answer = await client.post("/embed", json={"inputs": LONG, **truncate})
            assert answer.status_code == (200 if setting else 422)
        right, left = [
            await embedded(client, LONG + "c", truncate=True, truncation_direction=side)
            for side in ("right", "Left")
        ]
        whole = await embedded(client, LONG, truncate=True)
    np.testing.assert_array_equal(right, whole)
    assert not np.array_equal(left, right)


async def test_teis_published_vectors(
    minilm: Callable[[Precision], Artifact], shared_data: Path
) -> None:
    """The model is all-MiniLM-L6-v2; TEI approximates GELU, so vectors differ by about 2e-3."""
    golden = json.loads((shared_data / "tei-golden-minilm.json").read_text("utf-8"))
    expected = golden["all-MiniLM-L6-v2"]
    pooled, tokens = expected["mean_pooled_unnormalized"], expected["token_embeddings"]
    async with serving(minilm("fp32")) as client:
        assert_close(await embedded(client, [*pooled], normalize=False), [*pooled.values()])
        answer = await client.post("/embed_all", json={"inputs": [*tokens]})
        for found, vectors in zip(answer.json(), tokens.values(), strict=True):
            assert_close(np.array(found), vectors)


def assert_close(found: np.ndarray, expected: Any) -> None:
    """Compare vectors within the bounds of the data's README."""
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((found * expected).sum(axis=1) / norms).min() >= 0.999999
    np.testing.assert_allclose(found, expected, atol=2.2e-3)


async def test_ids_that_are_others_when_encoded_again_are_refused(
    client: httpx.AsyncClient,
) -> None:
    """A word piece that continues a word, at the beginning of a text."""
    (found,) = (await client.post("/tokenize", json={"inputs": "embeddings"})).json()
    continuing = [101, found[2]["id"], 102]
    answer = await client.post("/embed", json={"inputs": [continuing]})
    assert answer.status_code == 422
    assert "inputs[0]: the token ids, decoded and encoded again, are others" in answer.text


@pytest.mark.parametrize("inputs", ["a text", ["a text", "another", "a"]])
async def test_weights_ascend_without_zeros(artifact: Artifact, inputs: Any) -> None:
    texts = [inputs] if isinstance(inputs, str) else inputs
    expected = scores_of(artifact, SPARSE, texts)
    async with serving_task(artifact, SPARSE) as client:
        response = await client.post("/embed_sparse", json={"inputs": inputs})
    found = response.json()
    assert len(found) == len(texts)
    for values, weights in zip(found, expected, strict=True):
        assert [one["index"] for one in values] == np.flatnonzero(weights).tolist()
        assert 0 < len(values) < SPARSE.outputs
        for one in values:
            assert np.float32(one["value"]) == weights[one["index"]]


async def test_token_ids_are_texts(artifact: Artifact) -> None:
    """A list of them is one text, with the special tokens that it has itself."""
    async with serving_task(artifact, SPARSE) as client:
        expected = (await client.post("/embed_sparse", json={"inputs": "cat"})).json()
        (tokens,) = (await client.post("/tokenize", json={"inputs": "cat"})).json()
        ids = [token["id"] for token in tokens]
        assert (await client.post("/embed_sparse", json={"inputs": ids})).json() == expected
        bare = (await client.post("/embed_sparse", json={"inputs": ids[1:-1]})).json()
    assert bare != expected


async def test_whole_vocabularies_are_bounded_and_given_back(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight texts of 30 words of 4 bytes fit into 1024 bytes, nine do not."""
    async with serving_task(artifact, SPARSE, max_response_bytes=1024) as client:
        replies, sizes = state_of(client.app).replies, reserved_replies(monkeypatch)
        refused = await client.post("/embed_sparse", json={"inputs": ["a"] * 9})
        assert (replies.held, sizes) == (0, [])
        await client.post("/embed_sparse", json={"inputs": ["a"] * 8})
        assert (replies.held, sizes) == (0, [8 * 30 * 4])
    assert refused.status_code == 413
    assert "send fewer texts" in refused.json()["error"]


async def test_bm42_is_weighed_before_it_is_computed(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 48 tokens and two special ones may be a word, of 40 bytes."""
    monkeypatch.setattr("service.api.tei.vectors.last_layer", None)  # computes
    body = {"inputs": ["cat " * 24] * 2, "method": "bm42"}
    async with serving_task(artifact, None, max_response_bytes=2000) as client:
        response = await client.post("/embed_sparse", json=body)
    assert response.status_code == 413
    assert "about 2080 bytes" in response.json()["error"]


INPUTS = {"source_sentence": "a cat", "sentences": ["a dog", "a cat", "naïve 😀"]}


async def test_scores_are_in_the_order_given(client: httpx.AsyncClient) -> None:
    answer = await client.post("/similarity", json={"inputs": INPUTS, "parameters": None})
    texts = [INPUTS["source_sentence"], *INPUTS["sentences"]]
    source, *others = (await client.post("/embed", json={"inputs": texts})).json()
    assert answer.json() == pytest.approx([np.dot(source, one) for one in others], abs=1e-5)
    assert answer.headers["x-compute-characters"] == str(sum(map(len, texts)))


async def test_parameters_cut_texts_and_vectors_are_bounded(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each score, and the vector of 128 numbers of the source, count among the bytes of replies."""
    inputs = INPUTS | {"sentences": ["a " * 600] * 3}
    parameters = {"truncate": False}
    async with serving(artifact, fake_of(artifact), max_response_bytes=4 * 128) as client:
        replies, sizes = state_of(client.app).replies, reserved_replies(monkeypatch)
        assert (await client.post("/similarity", json={"inputs": inputs})).status_code == 200
        assert (replies.held, sizes) == (0, [3 * 24, 4 * 128])
        long = await client.post("/similarity", json={"inputs": inputs, "parameters": parameters})
        assert "inputs.sentences[0] has 602 tokens" in long.json()["error"]
        inputs["sentences"] = ["b"] * 22
        assert (await client.post("/similarity", json={"inputs": inputs})).status_code == 413


async def test_every_token_stands_at_its_id(
    client: httpx.AsyncClient, artifact: Artifact, small_checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_checkpoint)
    response = await client.get("/vocabulary")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == tokenizer.convert_ids_to_tokens(range(30522))
    some = await client.get("/vocabulary?index=1012&index=2054&index=0&index=1012")
    assert some.json() == [".", "what", "[PAD]", "."]
    assert response.headers["etag"] == some.headers["etag"] == f'"{artifact.sha256[:32]}"'
    again = {"if-none-match": response.headers["etag"]}
    for path in ("/vocabulary", "/vocabulary?index=7"):
        kept = await client.get(path, headers=again)
        assert (kept.status_code, kept.content) == (304, b"")
        assert kept.headers["etag"] == response.headers["etag"]
        assert kept.headers["cache-control"] == "no-cache"


async def test_the_bytes_are_held_until_the_last_is_sent(artifact: Artifact) -> None:
    held = []

    async def send(message: Any) -> None:
        held.append((message["type"], replies.held))

    async with serving_task(artifact, SPARSE) as client:
        replies = state_of(client.app).replies
        found = exchange(send=send, service=state_of(client.app))
        scope = found.scope
        response = await vocabulary(VocabularyQuery(index=[7, 8]), Request(scope), found)
        await response(scope, client.get, send)
        found.reservation.release()
        assert replies.held == 0
    assert held == [(f"http.response.{part}", 2 * TOKEN_BYTES) for part in ("start", "body")]


@pytest.mark.parametrize("query", ["index=30522", "index=-1", "index=a", "index=", "token=the"])
async def test_what_is_no_index_is_teis_422(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/vocabulary?index=1&{query}")
    assert response.status_code == 422
    assert response.json().keys() == {"error", "error_type"}
    if query in ("index=30522", "index=-1"):
        assert response.json()["error"] == (
            "index[1] is not in 0 … 30521; indices of method bm42 are hashes of stems, which have "
            "no vocabulary"
        )


async def test_an_id_without_a_token_is_null_and_a_large_vocabulary_refused(
    artifact: Artifact,
) -> None:
    config = artifact.manifest.config.model_copy(update={"vocab_size": 30600})
    manifest = artifact.manifest.model_copy(update={"config": config})
    wider = Artifact(artifact.folder, manifest, artifact.sha256)
    async with serving_task(wider, SPARSE, max_response_bytes=1024) as client:
        some = await client.get("/vocabulary?index=30521&index=30599")
        whole = await client.get("/vocabulary")
        assert state_of(client.app).replies.held == 0
    assert some.json() == ["##～", None]
    assert whole.status_code == 413
    assert "name some by `index`" in whole.json()["error"]
