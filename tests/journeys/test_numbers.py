"""Vectors, states and maps of real texts over HTTP: transformers' and published figures."""

from __future__ import annotations

import csv
import json
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load
from scipy.stats import spearmanr

from tests.journeys.texts import Text, all_texts

pytestmark = pytest.mark.e2e

LAYERS, HEADS, MAX_TOKENS = 6, 12, 256
BINARY = {"accept": "application/vnd.safetensors"}
EVERY = {"onnx": 1, "torch": 4}
"""Step between the texts that each engine computes: all for the default engine."""


@pytest.fixture(scope="module")
def texts(transformers_reference: Any) -> list[Text]:
    """Return all texts, and the longest that fits: exactly 256 tokens."""
    tokenizer, _ = transformers_reference
    longest = " ".join(["attention"] * (MAX_TOKENS - 2))
    assert len(tokenizer(longest)["input_ids"]) == MAX_TOKENS
    found = [*all_texts(), longest]
    assert len(found) >= 200
    return found


@pytest.fixture(scope="module")
def references(texts: list[Text], transformers_reference: Any) -> list[dict[str, Any]]:
    """Return transformers' results of each text alone."""
    tokenizer, model = transformers_reference
    found = []
    for text in texts:
        # the form for batches: the one for a single pair drops an empty second segment
        encoding = tokenizer(
            [text if isinstance(text, str) else list(text)],
            truncation=True,
            max_length=MAX_TOKENS,
            return_offsets_mapping=True,
        )
        encoding = {name: values[0] for name, values in encoding.items()}
        inputs = {name: torch.tensor([encoding[name]]) for name in tokenizer.model_input_names}
        with torch.no_grad():
            output = model(**inputs, output_hidden_states=True, output_attentions=True)
        mean = output.last_hidden_state[0].mean(dim=0)
        found.append(
            {
                "ids": encoding["input_ids"],
                "segments": encoding["token_type_ids"],
                "offsets": [list(pair) for pair in encoding["offset_mapping"]],
                "tokens": tokenizer.convert_ids_to_tokens(encoding["input_ids"]),
                "hidden": [state[0].numpy() for state in output.hidden_states],
                "attention": torch.stack(output.attentions)[:, 0].numpy(),
                "pooled": torch.nn.functional.normalize(mean, dim=0).numpy(),
            }
        )
    return found


def post(client: httpx.Client, route: str, **body: Any) -> dict[str, Any]:
    """Return a binary reply's tensors and metadata."""
    reply = client.post(route, json=body, headers=BINARY)
    assert reply.status_code == 200, reply.text
    size = int.from_bytes(reply.content[:8], "little")
    metadata = json.loads(reply.content[8 : 8 + size])["__metadata__"]
    return {**load(reply.content), "metadata": metadata}


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_tokens_are_transformers(client, texts, references, backend):
    reply = client.post(
        "/encode",
        json={"inputs": [t for t in texts if isinstance(t, str)], "truncate": True}
        | {"outputs": ["pooled"], "backend": backend},
    ).json()
    pairs = client.post(
        "/encode",
        json={"inputs": [t for t in texts if not isinstance(t, str)], "truncate": True}
        | {"outputs": ["pooled"], "backend": backend},
    ).json()
    single, double = iter(reply["results"]), iter(pairs["results"])
    for text, reference in zip(texts, references, strict=True):
        result = next(single if isinstance(text, str) else double)
        assert result["token_ids"] == reference["ids"]
        assert result["segment_ids"] == reference["segments"]
        assert result["offsets"] == reference["offsets"]
        assert result["tokens"] == reference["tokens"]
        np.testing.assert_allclose(result["pooled"], reference["pooled"], atol=1e-5)
    assert reply["backend"] == pairs["backend"] == backend


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
            np.testing.assert_allclose(found, references[i]["hidden"][layer], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", [str, tuple])
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_attention_of_every_head(client, texts, references, backend, kind):
    chosen = [i for i, text in enumerate(texts) if isinstance(text, kind)][:: EVERY[backend]]
    for start in range(0, len(chosen), 50):
        part = chosen[start : start + 50]
        reply = post(
            client,
            "/attention",
            inputs=[texts[i] for i in part],
            backend=backend,
            truncate=True,
        )
        assert json.loads(reply["metadata"]["layers"]) == list(range(LAYERS))
        for row, i in enumerate(part):
            found = reply[f"attention.{row}"]
            np.testing.assert_allclose(found, references[i]["attention"], rtol=0, atol=1e-5)
            np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=0, atol=1e-5)


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
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


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
