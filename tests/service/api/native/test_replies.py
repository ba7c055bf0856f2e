"""Replies to good requests: the engine's own numbers, in the requested form."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from model.numerics.pooling import l2_normalize, pool
from service.api.wire.media import SAFETENSORS
from service.engines.onnx import OnnxEngine
from tests.service.harness import serving

pytestmark = pytest.mark.anyio
TEXTS = ["The animal didn't cross the street", "because it was too tired", ""]
BINARY = {"accept": SAFETENSORS}
TIMINGS = ["x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"]


async def encode(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    response = await client.post("/encode", json=body)
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


def close(found: Any, wanted: Any) -> None:
    array = np.asarray(found, np.float32)
    assert array.shape == wanted.shape
    np.testing.assert_allclose(array, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
async def test_pooling_normalising_and_cutting(client: httpx.AsyncClient, pooling: Any) -> None:
    whole = await encode(client, inputs=TEXTS, pooling=pooling)
    unit = await encode(client, inputs=TEXTS, pooling=pooling, normalize=True)
    some = await encode(client, inputs=TEXTS, pooling=pooling, normalize=True, dimensions=7)
    plain = await encode(client, inputs=TEXTS, pooling=pooling, dimensions=128)
    for one, two, three, four in zip(whole, unit, some, plain, strict=True):
        vector = pool(np.asarray(one["embeddings"], np.float32), pooling)
        close(one["pooled"], vector)
        close(two["pooled"], l2_normalize(vector))
        close(three["pooled"], l2_normalize(vector[:7]))
        assert four["pooled"] == one["pooled"]


async def test_one_text_a_list_and_pairs(client: httpx.AsyncClient) -> None:
    (single,) = await encode(client, inputs="one text")
    (listed,) = await encode(client, inputs=["one text"])
    assert single == listed
    (empty,) = await encode(client, inputs="")
    assert empty["tokens"] == ["[CLS]", "[SEP]"]
    pair, other = await encode(client, inputs=[["one", "two"], ["", ""]])
    assert pair["tokens"] == ["[CLS]", "one", "[SEP]", "two", "[SEP]"]
    assert pair["segment_ids"] == [0, 0, 0, 1, 1]
    assert pair["offsets"] == [[0, 0], [0, 3], [0, 0], [0, 3], [0, 0]]
    assert other["tokens"] == ["[CLS]", "[SEP]", "[SEP]"]


@pytest.mark.parametrize(("direction", "kept"), [("right", "first"), ("left", "last")])
async def test_truncation(client: httpx.AsyncClient, direction: str, kept: str) -> None:
    long = "first " + "word " * 600 + "last"
    results = await encode(
        client,
        inputs=[long, "short"],
        truncate=True,
        truncation_direction=direction,
        outputs=["pooled"],
    )
    assert [result["truncated"] for result in results] == [True, False]
    assert len(results[0]["tokens"]) == 512
    assert {"first", "last"}.intersection(results[0]["tokens"]) == {kept}


@pytest.mark.parametrize(
    ("accept", "binary"),
    [(SAFETENSORS, True), (f"{SAFETENSORS};q=0.9", True), ("", False), ("application/json", False)],
)
async def test_the_binary_form_is_asked_for_by_name(
    client: httpx.AsyncClient, accept: str, binary: bool
) -> None:
    response = await client.post("/encode", json={"inputs": "a"}, headers={"accept": accept})
    assert response.headers["content-type"] == (SAFETENSORS if binary else "application/json")
    tokens = load(response.content)["token_ids"] if binary else response.json()["results"]
    assert len(tokens) == (3 if binary else 1)


@pytest.mark.parametrize("route", ["/encode", "/attention"])
@pytest.mark.parametrize("headers", [{}, BINARY], ids=["json", "binary"])
async def test_timings_are_whole_milliseconds(
    client: httpx.AsyncClient, route: str, headers: dict[str, str]
) -> None:
    response = await client.post(route, json={"inputs": ["a b", "c"]}, headers=headers)
    for name in TIMINGS:
        assert response.headers[name].isdecimal(), name
        assert int(response.headers[name]) < 10_000
    assert response.headers["x-compute-tokens"] == "7"


async def test_a_backend_by_its_own_name_is_the_same(client: httpx.AsyncClient) -> None:
    assert await encode(client, inputs=TEXTS) == await encode(client, inputs=TEXTS, backend="onnx")


async def test_a_long_reply_is_the_same_from_a_thread(client: httpx.AsyncClient) -> None:
    texts = [f"number {n} " + "word " * 100 for n in range(8)]
    many = await encode(client, inputs=texts)  # above `INLINE_BYTES`
    for text, result in zip(texts, many, strict=True):
        (one,) = await encode(client, inputs=text, outputs=["pooled"])
        assert one["token_ids"] == result["token_ids"]
        close(result["pooled"], np.asarray(one["pooled"], np.float32))


async def test_the_own_pooling_and_normalising_of_a_checkpoint(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    sentence = artifact.manifest.sentence.model_copy(
        update={
            "pooling": "max",
            "normalize": True,
            "prompts": {"query": "find: "},
            "include_prompt": False,
        }
    )
    manifest = artifact.manifest.model_copy(update={"sentence": sentence})
    async with serving(dataclasses.replace(artifact, manifest=manifest), onnx_engine) as client:
        (own,) = await encode(client, inputs=TEXTS[0])
        states = np.asarray(own["embeddings"], np.float32)
        close(own["pooled"], l2_normalize(states.max(axis=0)))
        (raw,) = await encode(client, inputs=TEXTS[0], normalize=False, pooling="mean")
        close(raw["pooled"], states.mean(axis=0))
        (prompted,) = await encode(client, inputs=TEXTS[0], prompt_name="query")
        states = np.asarray(prompted["embeddings"], np.float32)
        assert prompted["tokens"][:4] == ["[CLS]", "find", ":", "the"]
        close(prompted["pooled"], l2_normalize(states[3:].max(axis=0)))  # without the prompt
