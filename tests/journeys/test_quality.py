"""Quality against published figures: STS-B's Spearman, and another server's vectors."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from scipy.stats import spearmanr

pytestmark = pytest.mark.e2e


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
