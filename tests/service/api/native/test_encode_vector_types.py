"""Pooled vectors of /encode in each type, in all forms, against sentence-transformers."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, load_file
from sentence_transformers.util import quantize_embeddings

from model.artifact.manifest import VECTOR_MODULES, Artifact
from model.artifact.vectors import CALIBRATION
from tests.service.harness import assert_problem

pytestmark = pytest.mark.anyio

TEXTS = ["The animal didn't cross the street", "a", "because it was too tired"]
BINARY = {"accept": "application/vnd.safetensors"}


async def pooled(client: httpx.AsyncClient, **body: Any) -> Any:
    reply = await client.post("/encode", json={"inputs": TEXTS, "outputs": ["pooled"]} | body)
    assert reply.status_code == 200, reply.text
    return [result["pooled"] for result in reply.json()["results"]]


def quantize(vectors: np.ndarray, name: Any, calibration: np.ndarray) -> np.ndarray:
    if name == "float16":
        return vectors.astype(np.float16)
    found: np.ndarray = quantize_embeddings(vectors, name, calibration_embeddings=calibration)
    return found


@pytest.mark.parametrize("name", ["float32", "float16", "int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("cut", [{}, {"dimensions": 20, "normalize": True}], ids=str)
async def test_every_form_has_sentence_transformers_numbers(
    client: httpx.AsyncClient, artifact: Artifact, name: str, cut: dict[str, Any]
) -> None:
    vectors = np.array(await pooled(client, **cut), np.float32)
    calibration = load_file(artifact.path(VECTOR_MODULES))[CALIBRATION]
    if cut:
        calibration = calibration[:, :20]
        calibration /= np.linalg.norm(calibration, axis=1, keepdims=True)
    expected = quantize(vectors, name, calibration)
    body = cut | {"vector_type": name}
    np.testing.assert_array_equal(np.array(await pooled(client, **body), expected.dtype), expected)
    packed = await pooled(client, encoding_format="base64", **body)
    raw = [np.frombuffer(base64.b64decode(text), expected.dtype) for text in packed]
    np.testing.assert_array_equal(raw, expected)
    asked = {"inputs": TEXTS} | body
    tensors = load((await client.post("/encode", json=asked, headers=BINARY)).content)
    assert tensors["pooled"].dtype == expected.dtype
    np.testing.assert_array_equal(tensors["pooled"], expected)
    assert tensors["embeddings"].dtype == np.float32


async def test_ranges_of_the_binary_form_turn_int8_back_into_floats(
    client: httpx.AsyncClient, artifact: Artifact
) -> None:
    calibration = load_file(artifact.path(VECTOR_MODULES))[CALIBRATION]
    vectors = np.array(await pooled(client), np.float32)
    inside = np.clip(vectors, calibration.min(axis=0), calibration.max(axis=0))
    for name, middle in (("int8", 128.5), ("uint8", 0.5)):
        asked = {"inputs": TEXTS, "vector_type": name}
        tensors = load((await client.post("/encode", json=asked, headers=BINARY)).content)
        low, high = tensors["vector_ranges"]
        np.testing.assert_array_equal(low, calibration.min(axis=0))
        np.testing.assert_array_equal(high, calibration.max(axis=0))
        floats = low + (tensors["pooled"] + middle) * (high - low) / 255
        bound = (high - low) / 255 * 0.501
        assert (np.abs(floats - inside) <= bound).all()


async def test_given_ranges_apply_to_every_layer(
    client: httpx.AsyncClient, artifact: Artifact
) -> None:
    layers = {"layers": [0, 2], "pooling": "max"}
    vectors = np.array(await pooled(client, **layers), np.float32)
    ranges = np.stack([vectors.min(axis=(0, 1)), vectors.max(axis=(0, 1))])
    found = await pooled(client, vector_type="int8", vector_ranges=ranges.tolist(), **layers)
    np.testing.assert_array_equal(found, quantize_embeddings(vectors, "int8", ranges))


async def test_vectors_of_spans_have_the_type(client: httpx.AsyncClient) -> None:
    asked = {"inputs": ["one two three"], "spans": [[[0, 3], [4, 13]]], "pooling": "mean"}
    floats = (await client.post("/encode", json=asked)).json()["results"][0]["span_vectors"]
    asked["vector_type"] = "binary"
    found = (await client.post("/encode", json=asked)).json()["results"][0]["span_vectors"]
    expected = quantize_embeddings(np.array(floats, np.float32), "binary")
    np.testing.assert_array_equal(found, expected)
    tensors = load((await client.post("/encode", json=asked, headers=BINARY)).content)
    np.testing.assert_array_equal(tensors["span_vectors"], expected)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"vector_type": "int8", "layer": 0}, "give `vector_ranges` for another layer"),
        ({"vector_type": "int8", "outputs": ["tokens"]}, "add `pooled` to `outputs`"),
        ({"vector_type": "int4"}, "vector_type"),
        ({"vector_type": "int8", "vector_ranges": [[0.0]]}, "vector_ranges"),
    ],
)
async def test_what_does_not_fit_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], problem: str
) -> None:
    reply = await client.post("/encode", json={"inputs": "a"} | body)
    assert_problem(reply, 422)
    assert problem in reply.json()["detail"]
