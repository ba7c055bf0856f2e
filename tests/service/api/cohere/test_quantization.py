"""Vectors in Cohere's types against sentence-transformers' own."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from sentence_transformers.util import quantize_embeddings

from service.api.cohere.quantization import FORMS, EmbeddingType

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


def test_8_bits_keep_the_cosine(vectors: np.ndarray) -> None:
    found = read("int8", vectors).astype(np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    assert np.abs(found @ found.T - vectors @ vectors.T).max() < 0.02


@pytest.mark.parametrize("name", ["binary", "ubinary"])
def test_bits_are_sentence_transformers(vectors: np.ndarray, name: EmbeddingType) -> None:
    found = read(name, vectors)
    assert found.shape == (50, 384 / 8)
    np.testing.assert_array_equal(found, quantize_embeddings(vectors, name))


def test_floats_are_exact(vectors: np.ndarray) -> None:
    np.testing.assert_array_equal(read("float", vectors).astype(np.float32), vectors)
    for vector, text in zip(vectors, read("base64", vectors), strict=True):
        np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), "<f4"), vector)


@pytest.mark.parametrize("name", FORMS)
def test_predicted_bytes_are_enough(vectors: np.ndarray, name: EmbeddingType) -> None:
    form = FORMS[name]
    assert all(
        len(b"".join(form.pieces(vector))) <= form.feature_bytes * 384 + 4 for vector in vectors
    )
