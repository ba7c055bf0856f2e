"""Vectors, states and maps of real texts over HTTP: transformers' and published figures."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from tests.journeys.reference import LAYERS, MAX_TOKENS, Expected, Reference, close, post
from tests.journeys.texts import Text, all_texts

pytestmark = pytest.mark.e2e

EVERY = {"onnx": 1, "torch": 4}
"""Step between the texts that each engine computes: all for the default engine."""


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    """Return all texts, and the longest that fits: exactly 256 tokens."""
    found = [*all_texts(), " ".join(["attention"] * (MAX_TOKENS - 2))]
    assert len(found) >= 200
    return found


@pytest.fixture(scope="module")
def references(texts: list[Text], reference: Reference) -> list[Expected]:
    """Return transformers' results of each text alone."""
    found = [reference.run(text) for text in texts]
    assert len(found[-1].tokens["token_ids"]) == MAX_TOKENS
    return found


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_tokens_are_transformers(client, texts, references, backend):
    for kind in (str, tuple):
        chosen = [i for i, text in enumerate(texts) if isinstance(text, kind)]
        body = {"inputs": [texts[i] for i in chosen], "outputs": ["pooled"], "backend": backend}
        reply = client.post("/encode", json=body | {"truncate": True}).json()
        assert reply["backend"] == backend
        for i, result in zip(chosen, reply["results"], strict=True):
            expected = references[i]
            assert {name: result[name] for name in expected.tokens} == expected.tokens
            unit = expected.mean / np.linalg.norm(expected.mean)
            np.testing.assert_allclose(result["pooled"], unit, atol=1e-5)


@pytest.mark.parametrize("kind", [str, tuple])
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_hidden_states_of_every_layer(client, texts, references, backend, kind):
    """The last layer is checked for all texts, each other layer for some, different ones each."""
    chosen = [i for i, text in enumerate(texts) if isinstance(text, kind)][:: EVERY[backend]]
    for layer in range(LAYERS + 1):
        asked = chosen if layer == LAYERS else chosen[layer::LAYERS]
        inputs = [texts[i] for i in asked]
        reply = post(client, "/encode", inputs=inputs, layer=layer, backend=backend, truncate=True)
        bounds = reply["cu_seqlens"]
        for row, i in enumerate(asked):
            found = reply["embeddings"][bounds[row] : bounds[row + 1]]
            close(found, references[i].hidden[layer], 1e-4)


@pytest.mark.parametrize("kind", [str, tuple])
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_attention_of_every_head(client, texts, references, backend, kind):
    chosen = [i for i, text in enumerate(texts) if isinstance(text, kind)][:: EVERY[backend]]
    for start in range(0, len(chosen), 50):
        part = chosen[start : start + 50]
        inputs = [texts[i] for i in part]
        reply = post(client, "/attention", inputs=inputs, backend=backend, truncate=True)
        assert json.loads(reply["metadata"]["layers"]) == list(range(LAYERS))
        for row, i in enumerate(part):
            found = reply[f"attention.{row}"]
            close(found, references[i].maps)
            close(found.sum(axis=-1), 1)


@pytest.fixture(scope="module")
def sentence_transformer(minilm_checkpoint):
    """Return the checkpoint in sentence-transformers, with a chosen pooling, not normalised."""
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(str(minilm_checkpoint), device="cpu")
    del found[2]
    return found


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_pooling_is_sentence_transformers(client, texts, sentence_transformer, pooling, normalize):
    from sentence_transformers.sentence_transformer.modules import Pooling

    sentence_transformer[1] = Pooling(384, "lasttoken" if pooling == "last" else pooling)
    inputs = [text for text in texts if isinstance(text, str)][:40]
    expected = sentence_transformer.encode(inputs, normalize_embeddings=normalize)
    results = client.post(
        "/encode",
        json={"inputs": inputs, "pooling": pooling, "normalize": normalize, "outputs": ["pooled"]},
    ).json()["results"]
    found = np.array([result["pooled"] for result in results])
    close(found, expected)


def embed(client, texts, **body):
    vectors = []
    for start in range(0, len(texts), 250):
        part = texts[start : start + 250]
        reply = client.post("/encode", json={"inputs": part, "outputs": ["pooled"], **body})
        assert reply.status_code == 200, reply.text
        vectors += [result["pooled"] for result in reply.json()["results"]]
    return np.array(vectors)


@pytest.mark.nightly
def test_sts_benchmark(client, shared_data):
    with (shared_data / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1500
    first, second = (embed(client, [row[i] for row in rows]) for i in (0, 1))
    cosine = (first * second).sum(axis=1)
    spearman = 100 * spearmanr(cosine, [float(row[2]) for row in rows]).statistic
    assert spearman == pytest.approx(86.716, abs=0.02)


def cosines(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return (found * expected).sum(axis=-1) / norms


def test_vectors_of_another_server(client, shared_data):
    golden = json.loads((shared_data / "tei-golden-minilm.json").read_text(encoding="utf-8"))
    golden = golden["all-MiniLM-L6-v2"]
    for key, body in (
        ("mean_pooled_unnormalized", {"pooling": "mean", "normalize": False}),
        ("cls", {"pooling": "cls", "normalize": False}),
    ):
        texts = list(golden[key])
        found = embed(client, texts, **body)
        assert cosines(found, [golden[key][text] for text in texts]).min() >= 0.99999
    for text, expected in golden["token_embeddings"].items():
        reply = client.post("/encode", json={"inputs": text, "outputs": ["tokens"]}).json()
        assert cosines(reply["results"][0]["embeddings"], expected).min() >= 0.99999
