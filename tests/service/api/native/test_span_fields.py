"""`overflow` and `spans` of /encode against transformers; indices of layers and heads."""

from __future__ import annotations

import base64
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
from tests.service.harness import assert_problem, reserved_replies, serving

pytestmark = pytest.mark.anyio


TEXTS = ["The animal didn't cross the street,  because it was too tired.", "so 😀 naïve", "a"]
SPANS = [[[0, 10], [4, 19], [35, 62], [0, 62]], [[3, 4], [2, 10]], []]
BINARY = {"accept": "application/vnd.safetensors"}


def reference(
    checkpoint: Path, text: str, spans: list[list[int]], layer: int = -1
) -> list[torch.Tensor]:
    """Return the mean vector of each span's tokens, by the rule of the paper's own code.

    Tokens of a span are those whose characters overlap it; [CLS] and [SEP] belong to none.
    """
    model: Any = AutoModel.from_pretrained(checkpoint).eval()
    inputs = AutoTokenizer.from_pretrained(checkpoint)(
        text, return_tensors="pt", return_offsets_mapping=True
    )
    offsets = inputs.pop("offset_mapping")[0, 1:-1].tolist()
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states[layer][0, 1:-1]
    return [
        torch.stack(
            [
                state
                for state, (start, end) in zip(states, offsets, strict=True)
                if start < span[1] and end > span[0]
            ]
        ).mean(dim=0)
        for span in spans
    ]


async def encoded(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    asked = {"inputs": TEXTS, "spans": SPANS, "pooling": "mean", "normalize": False}
    reply = await client.post("/encode", json=asked | body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def test_spans_are_pooled_from_one_pass(
    client: httpx.AsyncClient, small_checkpoint: Path
) -> None:
    found = await encoded(client)
    for text, spans, result in zip(TEXTS, SPANS, found["results"], strict=True):
        assert result["spans"] == spans
        assert not {"embeddings", "pooled"} & result.keys()
        wanted = reference(small_checkpoint, text, spans)
        assert len(result["span_vectors"]) == len(wanted)
        for vector, own in zip(result["span_vectors"], wanted, strict=True):
            np.testing.assert_allclose(vector, own, rtol=0, atol=1e-5)


async def test_every_form_has_the_same_vectors(client: httpx.AsyncClient) -> None:
    own = [
        np.array(result["span_vectors"], np.float32)
        for result in (await encoded(client))["results"]
    ]
    coded = await encoded(client, encoding_format="base64")
    for result, vectors in zip(coded["results"], own, strict=True):
        values = np.frombuffer(base64.b64decode(result["span_vectors"]), "<f4")
        np.testing.assert_array_equal(values.reshape(-1, 128), vectors.reshape(-1, 128))
    asked = {"inputs": TEXTS, "spans": SPANS, "pooling": "mean", "normalize": False}
    tensors = load((await client.post("/encode", json=asked, headers=BINARY)).content)
    assert tensors["span_cu_seqlens"].tolist() == [0, 4, 6, 6]
    assert tensors["span_cu_seqlens"].dtype == tensors["spans"].dtype == np.int32
    assert tensors["spans"].tolist() == [*SPANS[0], *SPANS[1]]
    np.testing.assert_array_equal(tensors["span_vectors"], np.concatenate(own[:2]))


async def test_company_changes_no_bit(client: httpx.AsyncClient) -> None:
    together = await encoded(client)
    for text, spans, result in zip(TEXTS, SPANS, together["results"], strict=True):
        alone = await encoded(client, inputs=text, spans=[spans])
        assert alone["results"][0]["span_vectors"] == result["span_vectors"]


async def test_spans_beside_other_outputs(
    client: httpx.AsyncClient, small_checkpoint: Path
) -> None:
    """Every requested layer is pooled, cut and normalised, as a text's own vector is."""
    both = {"outputs": ["tokens", "pooled"], "layers": [1, 2], "dimensions": 16, "normalize": True}
    results = (await encoded(client, **both))["results"]
    plain = await encoded(client, **both, spans=None)
    for result, without in zip(results, plain["results"], strict=True):
        assert {name: result[name] for name in without} == without
    assert np.shape(results[0]["embeddings"])[0] == 2
    for layer, vectors in zip((1, 2), results[0]["span_vectors"], strict=True):
        for vector, own in zip(
            vectors, reference(small_checkpoint, TEXTS[0], SPANS[0], layer), strict=True
        ):
            unit = own[:16] / own[:16].norm()
            np.testing.assert_allclose(vector, unit, rtol=0, atol=1e-5)


async def test_what_has_no_spans_is_refused(client: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {"inputs": [["a", "b"]], "spans": [[[0, 1]]], "pooling": "mean"}
    assert_problem(await client.post("/encode", json=body), 422, "inputs[0] is a pair")
    body = {"inputs": "a", "spans": [[[0, 1]]], "pooling": "cls"}
    assert_problem(await client.post("/encode", json=body), 422, 'the pooling "cls" takes')


async def test_the_part_that_was_cut_off_has_no_span(client: httpx.AsyncClient) -> None:
    text = "word " * 600
    body = {"inputs": text, "truncate": True, "pooling": "mean", "spans": [[[0, 2549]]]}
    assert (await client.post("/encode", json=body)).status_code == 200
    says = "spans[0][0] is [0, 2553), and inputs[0] was cut to [0, 2549)"
    assert_problem(await client.post("/encode", json=body | {"spans": [[[0, 2553]]]}), 422, says)
    left = body | {"truncation_direction": "left", "spans": [[[440, 600]]]}
    says = "was cut to [450, 2999)"
    assert_problem(await client.post("/encode", json=left), 422, says)


async def test_the_reply_is_predicted(
    artifact: Artifact, onnx_engine: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(artifact, onnx_engine) as client:
        sizes = reserved_replies(monkeypatch)
        spans = [[[start, start + 9] for start in range(40)], [], []]
        body = {"inputs": TEXTS, "spans": spans, "pooling": "mean"}
        reply = await client.post("/encode", json=body)
        assert len(reply.content) <= sizes[-1] <= 2 * len(reply.content)


LIMIT = 18
LONG = "The animal didn't cross the street because it was too tired, and the street was wide. " * 3
LONG_TEXTS = [LONG, "a short text"]
STARTS = [0, 11, 22, 33, 44]
"""Start of each window of `LONG` among its 60 own tokens: 16 tokens each, at equal distances."""


@pytest.fixture(scope="module")
async def short_client(
    artifact: Artifact, onnx_engine: OnnxEngine, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(artifact, onnx_engine, max_length=LIMIT) as short_client:
        yield short_client


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


async def windows_of(short_client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    asked = {"inputs": LONG_TEXTS, "overflow": "windows", "pooling": "mean", "normalize": False}
    reply = await short_client.post("/encode", json=asked | body)
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["results"]
    return found


async def test_tokens_come_from_the_middle_of_windows(
    short_client: httpx.AsyncClient, states: NDArray[np.float32]
) -> None:
    spans = [[[0, 60], [100, 258], [4, 257]], []]
    long, short = await windows_of(short_client, outputs=["tokens", "pooled"], spans=spans)
    assert (long["windows"], short["windows"]) == (5, 1)
    assert len(long["tokens"]) == 62
    assert not long["truncated"]
    np.testing.assert_allclose(long["embeddings"], states, rtol=0, atol=1e-5)
    np.testing.assert_allclose(long["pooled"], states.mean(axis=0), rtol=0, atol=1e-5)
    for (start, end), vector in zip(spans[0], long["span_vectors"], strict=True):
        own = [n for n, (a, b) in enumerate(long["offsets"]) if a < b and a < end and b > start]
        np.testing.assert_allclose(vector, states[own].mean(axis=0), rtol=0, atol=1e-5)
    (plain,) = await windows_of(short_client, inputs=LONG_TEXTS[1], overflow="error")
    assert plain["embeddings"] == short["embeddings"]


async def test_company_layers_and_the_binary_form(short_client: httpx.AsyncClient) -> None:
    together = await windows_of(short_client, outputs=["pooled"], layers=[1, -1])
    (alone,) = await windows_of(short_client, outputs=["pooled"], layers=[1, -1], inputs=LONG)
    assert alone["pooled"] == together[0]["pooled"]
    (last,) = await windows_of(short_client, outputs=["pooled"], inputs=LONG)
    assert last["pooled"] == alone["pooled"][1]
    body = {"inputs": LONG_TEXTS, "overflow": "windows", "pooling": "mean", "normalize": False}
    accept = {"accept": "application/vnd.safetensors"}
    reply = await short_client.post("/encode", json=body, headers=accept)
    tensors = load(reply.content)
    assert tensors["windows"].tolist() == [5, 1]
    assert tensors["cu_seqlens"].tolist()[:2] == [0, 62]
    np.testing.assert_array_equal(tensors["pooled"][0], np.array(last["pooled"], np.float32))
    assert reply.headers["x-compute-tokens"] == str(5 * 18 + 5)


async def test_other_ways_of_overflow(short_client: httpx.AsyncClient) -> None:
    cut = await windows_of(short_client, overflow="truncate")
    old = await windows_of(short_client, overflow=None, truncate=True)
    assert cut == old == await windows_of(short_client, overflow="truncate", truncate=True)
    assert cut[0]["truncated"]
    assert "windows" not in cut[0]
    for overflow in ("error", None):
        body = {"inputs": LONG, "overflow": overflow}
        assert_problem(
            await short_client.post("/encode", json=body),
            422,
            "62 tokens; at most 18 fit",
            "Tokenizer",
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
    short_client: httpx.AsyncClient, body: dict[str, Any], says: str
) -> None:
    asked = {"inputs": LONG, "overflow": "windows", "pooling": "mean"}
    assert_problem(await short_client.post("/encode", json=asked | body), 422, says)


async def test_a_pair_has_no_windows(short_client: httpx.AsyncClient) -> None:
    body = {"inputs": [[LONG, "a"]], "overflow": "windows"}
    says = "inputs[0] has 64 tokens; at most 18 fit"
    assert_problem(await short_client.post("/encode", json=body), 422, says, "Tokenizer")


async def test_memory_of_windows_is_reserved(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    """The token vectors of a text are in memory together, and count as the request's own."""
    body = {"inputs": "a " * 45_000, "overflow": "windows", "pooling": "mean"}
    async with serving(artifact, onnx_engine, max_bytes_in_flight=2**26) as short_client:
        says = "more than 67108864 (--max-bytes-in-flight)"
        reply = await short_client.post(
            "/encode", json=body | {"outputs": ["pooled"], "layers": [0, 1, 2]}
        )
        assert_problem(reply, 413, says)
