"""Replies of /encode: exactly the engine's values, in each type and form."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, load_file
from sentence_transformers.util import quantize_embeddings

from model.artifact.manifest import VECTOR_MODULES, Artifact
from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import CALIBRATION, TextVectors
from service.api.native import encode
from service.api.native.texts import Header
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
ENCODE_HEADER = Header("a/model", "onnx", {})
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


@dataclass
class Result:
    """Text and its vectors."""

    text: Text
    embeddings: Any
    pooled: Any


def plan_of(results: Sequence[Result]) -> Plan:
    names = {"tokens": results[0].embeddings, "pooled": results[0].pooled}
    asked = EncodeOptions(tuple(name for name, array in names.items() if array is not None))
    manifest: Any = SimpleNamespace(sentence=SENTENCE, config=CONFIG, task=None)
    return Plan(asked, manifest, VECTORS)


def arrays_of(results: Sequence[Result]) -> list[TextArrays]:
    fields = [{"embeddings": own.embeddings, "pooled": own.pooled} for own in results]
    return [{name: own for name, own in one.items() if own is not None} for one in fields]


def encode_json(results: Sequence[Result], *, as_base64: bool) -> bytes:
    texts, arrays = [result.text for result in results], arrays_of(results)
    size = 15 * sum(array.size for own in arrays for array in own.values())
    plan = plan_of(results)
    reply = encode.encode_json(ENCODE_HEADER, plan, texts, arrays, size, as_base64=as_base64)
    return bytes(reply) if isinstance(reply, bytes | memoryview) else b"".join(reply)


def encode_safetensors(results: Sequence[Result]) -> bytes:
    texts, arrays = [result.text for result in results], arrays_of(results)
    return b"".join(encode.encode_safetensors(ENCODE_HEADER, plan_of(results), texts, arrays))


def encoded(*, embeddings: bool = True, pooled: bool = True) -> list[Result]:
    return [
        Result(
            tokenized(length),
            floats(length, HIDDEN, seed=length) if embeddings else None,
            floats(HIDDEN, seed=length + 100) if pooled else None,
        )
        for length in RAGGED
    ]


def same(found: Any, wanted: np.ndarray[Any, Any]) -> None:
    """Compare arrays bit for bit, the sign of zero included."""
    array = np.asarray(found, np.float32)
    assert array.shape == wanted.shape
    assert array.tobytes() == wanted.tobytes()


def assert_text(found: dict[str, Any], text: Text) -> None:
    assert found["tokens"] == text.tokens
    assert found["token_ids"] == text.input_ids.tolist()
    assert found["segment_ids"] == text.segment_ids.tolist()
    assert found["offsets"] == [list(pair) for pair in text.offsets]
    assert found["truncated"] is text.truncated


def test_json_numbers_are_the_engines_own() -> None:
    results = encoded()
    reply = json.loads(encode_json(results, as_base64=False))
    assert reply.keys() == {"model", "backend", "results", "usage"}
    assert (reply["model"], reply["backend"]) == ("a/model", "onnx")
    assert reply["usage"] == {"inputs": 3, "tokens": 10}
    for found, result in zip(reply["results"], results, strict=True):
        assert_text(found, result.text)
        same(found["embeddings"], result.embeddings)
        same(found["pooled"], result.pooled)


@pytest.mark.parametrize("as_base64", [False, True])
@pytest.mark.parametrize(("embeddings", "pooled"), [(True, False), (False, True)])
def test_what_was_not_asked_for_is_absent(as_base64: bool, embeddings: bool, pooled: bool) -> None:
    results = encoded(embeddings=embeddings, pooled=pooled)
    reply = json.loads(encode_json(results, as_base64=as_base64))
    for result in reply["results"]:
        assert ("embeddings" in result) == embeddings
        assert ("pooled" in result) == pooled
    tensors = load(encode_safetensors(results))
    assert ("embeddings" in tensors) == embeddings
    assert ("pooled" in tensors) == pooled


def test_base64_is_little_endian_and_row_major() -> None:
    results = encoded()
    fortran = Result(tokenized(4), np.asfortranarray(floats(4, HIDDEN)), floats(2 * HIDDEN)[::2])
    results.append(fortran)
    reply = json.loads(encode_json(results, as_base64=True))
    for found, result in zip(reply["results"], results, strict=True):
        assert result.embeddings is not None
        assert result.pooled is not None
        matrix = np.frombuffer(base64.b64decode(found["embeddings"], validate=True), "<f4")
        same(matrix.reshape(-1, HIDDEN), np.ascontiguousarray(result.embeddings))
        vector = np.frombuffer(base64.b64decode(found["pooled"], validate=True), "<f4")
        same(vector, np.ascontiguousarray(result.pooled))


def test_slices_are_written_as_they_read() -> None:
    wide = floats(6, 2 * HIDDEN)
    result = Result(tokenized(3), wide[::2, ::2], wide[0, ::-2])
    reply = json.loads(encode_json([result], as_base64=False))["results"][0]
    same(reply["embeddings"], np.ascontiguousarray(wide[::2, ::2]))
    same(reply["pooled"], np.ascontiguousarray(wide[0, ::-2]))
    tensors = load(encode_safetensors([result]))
    same(tensors["embeddings"], np.ascontiguousarray(wide[::2, ::2]))


def assert_texts(tensors: dict[str, Any]) -> None:
    texts = [tokenized(length) for length in RAGGED]
    assert tensors["cu_seqlens"].dtype == np.int32
    assert tensors["cu_seqlens"].tolist() == [0, 3, 4, 10]
    for name, field in (("token_ids", "input_ids"), ("segment_ids", "segment_ids")):
        assert tensors[name].dtype == np.int32
        ids = [getattr(text, field) for text in texts]
        np.testing.assert_array_equal(tensors[name], np.concatenate(ids))
    assert tensors["truncated"].dtype == np.uint8
    assert tensors["truncated"].tolist() == [0, 1, 0]


def test_binary_encode_has_no_padding() -> None:
    results = encoded()
    tensors = load(encode_safetensors(results))
    assert tensors.keys() == {
        "cu_seqlens",
        "token_ids",
        "segment_ids",
        "truncated",
        "embeddings",
        "pooled",
    }
    assert_texts(tensors)
    assert tensors["embeddings"].dtype == tensors["pooled"].dtype == np.float32
    assert tensors["embeddings"].shape == (10, HIDDEN)
    assert tensors["pooled"].shape == (3, HIDDEN)
    for index, result in enumerate(results):
        start, end = tensors["cu_seqlens"][index : index + 2]
        same(tensors["embeddings"][start:end], result.embeddings)
        same(tensors["pooled"][index], result.pooled)


def test_metadata_holds_the_lists(tmp_path: Path) -> None:
    file = tmp_path / "reply.safetensors"
    file.write_bytes(encode_safetensors(encoded()))
    with safe_open(file, framework="numpy") as reply:
        metadata = reply.metadata()
    texts = [tokenized(length) for length in RAGGED]
    assert metadata.pop("model") == "a/model"
    assert metadata.pop("backend") == "onnx"
    lists = {name: json.loads(value) for name, value in metadata.items()}
    assert lists.pop("tokens") == [text.tokens for text in texts]
    assert lists.pop("offsets") == [[list(pair) for pair in text.offsets] for text in texts]
    assert lists.pop("usage") == {"inputs": 3, "tokens": 10}
    assert lists == {}


@pytest.mark.parametrize("hidden_size", [128, 384, 1024, 4096])
def test_the_assumed_size_of_vectors_is_on_the_safe_side(hidden_size: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(64, hidden_size)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    for array in (vectors, unit):
        result = Result(tokenized(64), array, None)
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
