"""Replies of /encode: exactly the engine's values, in each type and form."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, load_file
from sentence_transformers.util import quantize_embeddings

from model.artifact.manifest import VECTOR_MODULES, Artifact
from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import CALIBRATION, TextVectors
from service.api.native import encode
from service.api.native.texts import Envelope
from service.api.wire.json_pieces import safetensors_parts
from service.api.wire.media import JSON_BYTES_PER_FLOAT
from service.inference.encoding import EncodeOptions
from service.inference.outputs.field import TextArrays
from service.inference.plan import Plan
from service.inference.tokenization.text import Text
from tests.service.harness import CONFIG, tokenized

pytestmark = pytest.mark.anyio


HIDDEN = 8
RAGGED = [3, 1, 6]
SENTENCE = SentenceConfig(max_length=9)
VECTORS = TextVectors(SENTENCE, CONFIG.hidden_size, {})
AWKWARD = np.array(
    [0.1, 1 / 3, -0.0, 1e-45, 1.1754944e-38, 3.4028235e38, -7.0000005e-5, 16777217.0], np.float32
)
"""Numbers that change if a decimal digit is missing."""


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return random bit patterns of finite float32, the awkward ones first."""
    bits = np.random.default_rng(seed).integers(0, 2**32, shape, dtype=np.uint32)
    values = bits.view(np.float32)
    values = np.where(np.isfinite(values), values, np.float32(1.5)).astype(np.float32)
    values.flat[: AWKWARD.size] = AWKWARD[: values.size]
    return values


class Result(NamedTuple):
    """Text and its vectors."""

    text: Text
    arrays: TextArrays


def plan_of(results: Sequence[Result]) -> Plan:
    names = {"embeddings": "tokens", "pooled": "pooled"}
    manifest: Any = SimpleNamespace(sentence=SENTENCE, config=CONFIG, task=None)
    return Plan(EncodeOptions(tuple(names[own] for own in results[0].arrays)), manifest, VECTORS)


def encode_json(results: Sequence[Result], *, as_base64: bool) -> bytes:
    texts, arrays = zip(*results, strict=True)
    size = 15 * sum(array.size for own in arrays for array in own.values())
    plan = plan_of(results)
    envelope = Envelope("a/model", "onnx", texts)
    reply = encode.encode_json(envelope, plan, arrays, size, as_base64=as_base64)
    return bytes(reply) if isinstance(reply, bytes | memoryview) else b"".join(reply)


def encode_safetensors(results: Sequence[Result]) -> bytes:
    texts, arrays = zip(*results, strict=True)
    envelope = Envelope("a/model", "onnx", texts)
    return b"".join(encode.encode_safetensors(envelope, plan_of(results), arrays))


def both(embeddings: Any, pooled: Any) -> TextArrays:
    return {"embeddings": embeddings, "pooled": pooled}


def encoded() -> list[Result]:
    vectors = [
        both(floats(size, HIDDEN, seed=size), floats(HIDDEN, seed=size + 100)) for size in RAGGED
    ]
    return [*map(Result, map(tokenized, RAGGED), vectors)]


def same(found: Any, wanted: np.ndarray[Any, Any]) -> None:
    """Compare arrays bit for bit, the sign of zero included."""
    array = np.asarray(found, np.float32)
    assert array.shape == wanted.shape
    assert array.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("as_base64", [False, True])
def test_json_numbers_are_the_engines_own(as_base64: bool) -> None:
    """Base64 is little-endian and row-major, also of arrays in another order."""
    wide = floats(6, 2 * HIDDEN)
    fortran = both(np.asfortranarray(floats(4, HIDDEN)), floats(2 * HIDDEN)[::2])
    slices = both(wide[::2, ::2], wide[0, ::-2])
    results = [*encoded(), Result(tokenized(4), fortran), Result(tokenized(3), slices)]
    reply = json.loads(encode_json(results, as_base64=as_base64))
    assert reply.keys() == {"model", "backend", "results", "usage"}
    assert (reply["model"], reply["backend"]) == ("a/model", "onnx")
    assert reply["usage"] == {"inputs": 5, "tokens": 17}
    for found, (text, arrays) in zip(reply["results"], results, strict=True):
        assert found["tokens"] == text.tokens
        assert found["token_ids"] == text.input_ids.tolist()
        assert found["segment_ids"] == text.segment_ids.tolist()
        assert found["offsets"] == [list(pair) for pair in text.offsets]
        assert found["truncated"] is text.truncated
        for name, array in arrays.items():
            values = found[name]
            if as_base64:
                values = np.frombuffer(base64.b64decode(values, validate=True), "<f4")
                values = values.reshape(array.shape)
            same(values, np.ascontiguousarray(array))


@pytest.mark.parametrize("name", ["embeddings", "pooled"])
def test_what_was_not_asked_for_is_absent(name: str) -> None:
    results = [Result(text, {name: arrays[name]}) for text, arrays in encoded()]
    for as_base64 in (False, True):
        for found in json.loads(encode_json(results, as_base64=as_base64))["results"]:
            assert {"embeddings", "pooled"} & found.keys() == {name}
    assert {"embeddings", "pooled"} & load(encode_safetensors(results)).keys() == {name}


def test_binary_encode_has_no_padding() -> None:
    results = encoded()
    tensors = load(encode_safetensors(results))
    texts = [result.text for result in results]
    expected = {
        "cu_seqlens": np.array([0, 3, 4, 10], np.int32),
        "token_ids": np.concatenate([text.input_ids for text in texts]).astype(np.int32),
        "segment_ids": np.concatenate([text.segment_ids for text in texts]).astype(np.int32),
        "truncated": np.array([0, 1, 0], np.uint8),
        "embeddings": np.concatenate([own.arrays["embeddings"] for own in results]),
        "pooled": np.stack([own.arrays["pooled"] for own in results]),
    }
    assert tensors.keys() == expected.keys()
    for name, array in expected.items():
        assert (tensors[name].dtype, tensors[name].tobytes()) == (array.dtype, array.tobytes())
        assert tensors[name].shape == array.shape


@pytest.mark.parametrize("hidden_size", [128, 384, 1024, 4096])
def test_the_assumed_size_of_vectors_is_on_the_safe_side(hidden_size: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(64, hidden_size)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    for array in (vectors, unit):
        result = Result(tokenized(64), {"embeddings": array})
        reply = encode_json([result], as_base64=False)
        assert 0.6 < len(reply) / (array.size * JSON_BYTES_PER_FLOAT) <= 1


def test_large_arrays_are_sent_as_they_are() -> None:
    matrix = floats(5, HIDDEN)
    _, part = safetensors_parts({"matrix": matrix}, {})
    assert np.shares_memory(np.frombuffer(part, np.uint8), matrix)


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
