"""`chunk` of /encode over HTTP: late chunks are spans, others are inputs of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio

LONG = "The animal was tired. It didn't cross the street, so it slept.\n\nMr. Li saw it there. " * 4
TEXTS = [LONG, "A short one.", ""]
CHUNK = {"by": "sentences", "size": 16, "overlap": 8}


@pytest.fixture(scope="module")
async def client(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    limits = {"max_length": 24, "max_client_batch_size": 20}
    async with serving(artifact, onnx_engine, **limits) as client:
        yield client


async def encoded(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    reply = await client.post("/encode", json={"pooling": "mean"} | body)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["results"]
    return found


async def test_late_chunks_are_spans_of_the_whole_text(client: httpx.AsyncClient) -> None:
    asked = {"inputs": TEXTS, "overflow": "windows", "layers": [1, 2]}
    found = await encoded(client, **asked, chunk=CHUNK)
    assert [len(result["spans"]) for result in found] == [9, 1, 0]
    wanted = [
        "It didn't cross the street, so it slept.",
        "Mr. Li saw it there. The animal was tired.",
    ]
    assert [LONG[start:end] for start, end in found[0]["spans"][1:3]] == wanted
    spans = [result["spans"] for result in found]
    assert found == await encoded(client, **asked, spans=spans)


@pytest.mark.parametrize("other", [{}, {"layers": [0, 2], "dimensions": 8}, {"pooling": "cls"}])
async def test_other_chunks_equal_inputs_of_their_own(
    client: httpx.AsyncClient, other: dict[str, Any]
) -> None:
    found = await encoded(client, inputs=TEXTS, chunk=CHUNK | {"late": False}, **other)
    for text, result in zip(TEXTS, found, strict=True):
        assert not {"pooled", "embeddings", "windows"} & result.keys()
        for place, (start, end) in enumerate(result["spans"]):
            (alone,) = await encoded(client, inputs=text[start:end], outputs=["pooled"], **other)
            own = np.array(result["span_vectors"])[..., place, :]
            np.testing.assert_array_equal(own, alone["pooled"])
    assert len(found[0]["tokens"]) > 24
    assert found[2]["spans"] == found[2]["span_vectors"] == [] or "layers" in other


async def test_the_binary_form_and_types_of_chunks(client: httpx.AsyncClient) -> None:
    body = {"inputs": TEXTS, "pooling": "mean", "chunk": CHUNK | {"late": False}}
    accept = {"accept": "application/vnd.safetensors"}
    binary = body | {"vector_type": "ubinary"}
    tensors = load((await client.post("/encode", json=binary, headers=accept)).content)
    floats = load((await client.post("/encode", json=body, headers=accept)).content)
    assert tensors["span_cu_seqlens"].tolist() == [0, 9, 10, 10]
    signs = np.packbits(floats["span_vectors"] > 0, axis=-1)
    np.testing.assert_array_equal(tensors["span_vectors"], signs)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"chunk": CHUNK, "spans": [[[0, 1]]]}, "spans and chunk exclude each other"),
        ({"chunk": CHUNK | {"overlap": 9}}, "overlap 9 is more than half of size 16"),
        ({"chunk": CHUNK, "pooling": "cls"}, 'the pooling "cls" takes the first token'),
        ({"chunk": CHUNK, "inputs": [["a", "b"]]}, "inputs[0] is a pair"),
        ({"chunk": {"by": "tokens", "size": 23, "late": False}}, "set `size` to at most 22"),
        (
            {"chunk": {"by": "tokens", "size": 2, "late": False}},
            "at most 20 are taken with `late` false",
        ),
        ({"chunk": {"by": "tokens", "late": False}, "inputs": " "}, "no input has a token"),
        ({"chunk": CHUNK | {"late": False}, "outputs": ["pooled"]}, "outputs is of a pass"),
        ({"chunk": CHUNK | {"late": False}, "overflow": "windows"}, "overflow is of a pass"),
        ({"chunk": {"size": 16}}, "chunk.by"),
        ({"chunk": {"by": "words"}}, "chunk.by"),
        ({"chunk": {"by": "tokens", "size": 0}}, "chunk.size"),
    ],
)
async def test_invalid_chunks_are_refused(
    client: httpx.AsyncClient, body: dict[str, Any], says: str
) -> None:
    asked = {"inputs": LONG, "pooling": "mean"} | body
    assert_problem(await client.post("/encode", json=asked), 422, says)


async def test_late_chunks_of_a_long_text_need_windows(client: httpx.AsyncClient) -> None:
    body = {"inputs": LONG, "pooling": "mean", "chunk": CHUNK}
    says = "at most 24 fit"
    assert_problem(await client.post("/encode", json=body), 422, says, "Tokenizer")
    (cut,) = await encoded(client, inputs=LONG, chunk=CHUNK, overflow="truncate")
    assert cut["spans"][-1][1] == cut["offsets"][-2][1]
