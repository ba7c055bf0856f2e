"""`overflow` of /encode over HTTP, against transformers on each window."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio

LIMIT = 18
LONG = "The animal didn't cross the street because it was too tired, and the street was wide. " * 3
TEXTS = [LONG, "a short text"]
STARTS = [0, 11, 22, 33, 44]
"""Start of each window of `LONG` among its 60 own tokens: 16 tokens each, at equal distances."""


@pytest.fixture(scope="module")
async def client(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(artifact, onnx_engine, max_length=LIMIT) as client:
        yield client


@pytest.fixture(scope="module")
def states(small_checkpoint: Path) -> NDArray[np.float32]:
    """Return the token vectors `[62, 128]` of `LONG` by the rule, each window by transformers."""
    model: Any = AutoModel.from_pretrained(small_checkpoint).eval()
    ids = AutoTokenizer.from_pretrained(small_checkpoint)(LONG)["input_ids"]
    assert len(ids) == 62
    windows = []
    for start in STARTS:
        window = [ids[0], *ids[1 + start : 17 + start], ids[-1]]
        with torch.no_grad():
            windows.append(model(input_ids=torch.tensor([window])).last_hidden_state[0].numpy())
    rows = [windows[0][0]]
    for token in range(60):
        room = [
            min(
                token - start if start else np.inf,
                start + 15 - token if start != STARTS[-1] else np.inf,
            )
            for start in STARTS
        ]
        best = int(np.argmax(room))
        rows.append(windows[best][1 + token - STARTS[best]])
    return np.stack([*rows, windows[-1][-1]])


async def encoded(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    asked = {"inputs": TEXTS, "overflow": "windows", "pooling": "mean", "normalize": False}
    reply = await client.post("/encode", json=asked | body)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["results"]
    return found


async def test_tokens_come_from_the_middle_of_windows(
    client: httpx.AsyncClient, states: NDArray[np.float32]
) -> None:
    spans = [[[0, 60], [100, 258], [4, 257]], []]
    long, short = await encoded(client, outputs=["tokens", "pooled"], spans=spans)
    assert (long["windows"], short["windows"]) == (5, 1)
    assert len(long["tokens"]) == 62
    assert not long["truncated"]
    np.testing.assert_allclose(long["embeddings"], states, rtol=0, atol=1e-5)
    np.testing.assert_allclose(long["pooled"], states.mean(axis=0), rtol=0, atol=1e-5)
    for (start, end), vector in zip(spans[0], long["span_vectors"], strict=True):
        own = [n for n, (a, b) in enumerate(long["offsets"]) if a < b and a < end and b > start]
        np.testing.assert_allclose(vector, states[own].mean(axis=0), rtol=0, atol=1e-5)
    (plain,) = await encoded(client, inputs=TEXTS[1], overflow="error")
    assert plain["embeddings"] == short["embeddings"]


async def test_company_layers_and_the_binary_form(client: httpx.AsyncClient) -> None:
    together = await encoded(client, outputs=["pooled"], layers=[1, -1])
    (alone,) = await encoded(client, outputs=["pooled"], layers=[1, -1], inputs=LONG)
    assert alone["pooled"] == together[0]["pooled"]
    (last,) = await encoded(client, outputs=["pooled"], inputs=LONG)
    assert last["pooled"] == alone["pooled"][1]
    body = {"inputs": TEXTS, "overflow": "windows", "pooling": "mean", "normalize": False}
    accept = {"accept": "application/vnd.safetensors"}
    reply = await client.post("/encode", json=body, headers=accept)
    tensors = load(reply.content)
    assert tensors["windows"].tolist() == [5, 1]
    assert tensors["cu_seqlens"].tolist()[:2] == [0, 62]
    np.testing.assert_array_equal(tensors["pooled"][0], np.array(last["pooled"], np.float32))
    assert reply.headers["x-compute-tokens"] == str(5 * 18 + 5)


async def test_other_ways_of_overflow(client: httpx.AsyncClient) -> None:
    cut = await encoded(client, overflow="truncate")
    old = await encoded(client, overflow=None, truncate=True)
    assert cut == old == await encoded(client, overflow="truncate", truncate=True)
    assert cut[0]["truncated"]
    assert "windows" not in cut[0]
    for overflow in ("error", None):
        body = {"inputs": LONG, "overflow": overflow}
        assert_problem(
            await client.post("/encode", json=body), 422, "62 tokens; at most 18 fit", "Tokenizer"
        )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"truncate": True}, 'truncate true and overflow "windows" exclude each other'),
        ({"truncate": True, "overflow": "error"}, 'truncate true and overflow "error"'),
        ({"truncate": False, "overflow": "truncate"}, 'truncate false and overflow "truncate"'),
        ({"pooling": "cls"}, "inputs[0] takes 5 windows: the pooling 'cls' takes a token"),
        ({"pooling": "last"}, "the pooling 'last' takes a token"),
        ({"inputs": "a " * 5_000_000}, "the request has 10000000 characters"),
    ],
)
async def test_what_windows_cannot_give_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], says: str
) -> None:
    asked = {"inputs": LONG, "overflow": "windows", "pooling": "mean"}
    assert_problem(await client.post("/encode", json=asked | body), 422, says)


async def test_a_pair_has_no_windows(client: httpx.AsyncClient) -> None:
    body = {"inputs": [[LONG, "a"]], "overflow": "windows"}
    says = "inputs[0] has 64 tokens; at most 18 fit"
    assert_problem(await client.post("/encode", json=body), 422, says, "Tokenizer")


async def test_memory_of_windows_is_reserved(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    """The token vectors of a text are in memory together, and count as the request's own."""
    body = {"inputs": "a " * 45_000, "overflow": "windows", "pooling": "mean"}
    async with serving(artifact, onnx_engine, max_bytes_in_flight=2**26) as client:
        says = "more than 67108864 (--max-bytes-in-flight)"
        reply = await client.post(
            "/encode", json=body | {"outputs": ["pooled"], "layers": [0, 1, 2]}
        )
        assert_problem(reply, 413, says)
