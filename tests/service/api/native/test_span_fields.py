"""`spans` of /encode over HTTP, against transformers' token vectors pooled by hand."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
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


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([[[0, 3]]], "spans has 1 lists for 2 inputs"),
        ([[], [[0, 2], [3, 3]]], "spans[1][1] is [3, 3): its start must be below its end"),
        ([[], [[5, 2]]], "spans[1][0] is [5, 2): its start must be below its end"),
        ([[[0, 12]], []], "spans[0][0] is [0, 12), and inputs[0] is [0, 11)"),
        ([[[-1, 2]], []], "spans[0][0] is [-1, 2), and inputs[0] is [0, 11)"),
        ([[[0, 2], [5, 6]], []], "spans[0][1] is [5, 6), which has no token"),
        ([[[0, 2.5]], []], "spans[0][0] is not [start, end] of two integers"),
        ([[[0, True]], []], "spans[0][0] is not [start, end]"),
        ([[[0, 1, 2]], []], "spans[0][0] is not [start, end]"),
        ([[0, 1], []], "spans[0][0] is not [start, end]"),
        ([0, 1], "a list of [start, end] for each input is needed"),
        ([[[0, 2**31]], []], "spans[0][0] is [0, 2147483648), and inputs[0] is [0, 11)"),
        ([[[0, 2**63]], []], f"spans[0][0] is [0, {2**63}), and inputs[0] is [0, 11)"),
        ([[[0, 2**64]], []], "spans[0][0] is not [start, end] of two integers"),
        ([[[0, 2]] * 2**14, [[0, 2]]], "at most 16384 spans"),
    ],
)
async def test_invalid_spans_are_named(client: httpx.AsyncClient, spans: Any, says: str) -> None:
    body = {"inputs": ["hello world", "hello"], "spans": spans, "pooling": "mean"}
    assert_problem(await client.post("/encode", json=body), 422, says)


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
        sizes = reserved_replies(client.app, monkeypatch)
        spans = [[[start, start + 9] for start in range(40)], [], []]
        body = {"inputs": TEXTS, "spans": spans, "pooling": "mean"}
        reply = await client.post("/encode", json=body)
        assert len(reply.content) <= sizes[-1] <= 2 * len(reply.content)
