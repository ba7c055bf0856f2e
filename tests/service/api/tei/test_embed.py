"""`POST /embed` and `POST /embed_all` in TEI's forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.config.precision import Precision
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, TOKENS, serving_task
from tests.service.harness import serving
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


@pytest.mark.parametrize("path", ["/embed", "/embed_all"])
@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        ({"inputs": ""}, 400, "Empty", "inputs[0] is empty"),
        ({"inputs": []}, 400, "Empty", "at least one"),
        ({"inputs": ["a", []]}, 400, "Empty", "inputs[1] is empty"),
        ({}, 422, "Validation", "required"),
        ({"inputs": ["a", 1]}, 422, "Validation", "list of token ids"),
        ({"inputs": [30522]}, 422, "Validation", "0 … 30521"),
        ({"inputs": ["a"] * 513}, 422, "Validation", "at most 512"),
        ({"inputs": LONG, "truncate": False}, 422, "Tokenizer", "602 tokens"),
        ({"inputs": "a", "truncation_direction": "up"}, 422, "Validation", "direction"),
        ({"inputs": "a", "prompt_name": "q"}, 422, "Validation", "prompt_name"),
    ],
)
async def test_refusals(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, kind: str, says: str
) -> None:
    answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind)
    assert says in answer.json()["error"]


@pytest.mark.parametrize("dimensions", [0, 129, -1])
async def test_dimensions_that_are_not_there_are_refused(
    client: httpx.AsyncClient, dimensions: int
) -> None:
    answer = await client.post("/embed", json={"inputs": "a", "dimensions": dimensions})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")
    assert "1 … 128" in answer.json()["error"]


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


@pytest.mark.parametrize("task", [LABELS, RANKS, SPARSE, TOKENS])
async def test_other_models_are_424(artifact: Artifact, task: Any) -> None:
    pair = {"source_sentence": "a", "sentences": ["b"]}
    async with serving_task(artifact, task) as client:
        for path, inputs in (("/embed", "a"), ("/embed_all", "a"), ("/similarity", pair)):
            answer = await client.post(path, json={"inputs": inputs})
            assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
            assert "serve an embedding model" in answer.json()["error"]


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
