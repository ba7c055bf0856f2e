"""/attention/scores over HTTP against transformers: queries, keys, scores, and refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from tests.service.harness import StaysOpen, assert_problem, serving

pytestmark = pytest.mark.anyio
ROUTE = "/attention/scores"
TEXTS = ["A man is playing a guitar.", "", "the cat sat on the mat"]
LAYER, HEAD = 1, 1


class Oracle:
    """transformers' inputs of a head's scores, and its weights."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        ).eval()

    def compared(self, text: str, layer: int, head: int) -> tuple[Any, Any, Any]:
        """Return queries `[S, p]`, keys `[S, p]` and weights `[S, S]`."""
        own = self.model.encoder.layer[layer].attention.self
        with torch.inference_mode():
            output = self.model(
                **self.tokenizer(text, return_tensors="pt"),
                output_hidden_states=True,
                output_attentions=True,
            )
            state = output.hidden_states[layer]
            size = own.attention_head_size
            part = slice(head * size, (head + 1) * size)
            queries, keys = (
                projection(state)[0, :, part].numpy() for projection in (own.query, own.key)
            )
        return queries, keys, output.attentions[layer][0, head].numpy()


@pytest.fixture(scope="module")
def oracle(small_checkpoint: Path) -> Oracle:
    return Oracle(small_checkpoint)


@pytest.fixture(params=["onnx_engine", "torch_engine"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return StaysOpen(request.getfixturevalue(request.param))


@pytest.fixture
async def client(artifact: Artifact, engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(artifact, engine) as client:
        yield client


async def test_they_are_transformers_own(client: httpx.AsyncClient, oracle: Oracle) -> None:
    body = {"inputs": TEXTS, "layer": -1, "head": HEAD}
    reply = (await client.post(ROUTE, json=body)).json()
    size = oracle.model.config.hidden_size // oracle.model.config.num_attention_heads
    assert (reply["layer"], reply["head"]) == (LAYER, HEAD)
    assert reply["scale"] == pytest.approx(size**-0.5)
    assert reply["usage"]["inputs"] == len(TEXTS)
    for text, result in zip(TEXTS, reply["results"], strict=True):
        queries, keys, weights = oracle.compared(text, LAYER, HEAD)
        assert "queries" not in result
        np.testing.assert_allclose(result["query_vectors"], queries, atol=1e-4)
        np.testing.assert_allclose(result["key_vectors"], keys, atol=1e-4)
        np.testing.assert_allclose(result["scores"], queries @ keys.T * size**-0.5, atol=1e-4)
        np.testing.assert_allclose(result["weights"], weights, atol=1e-5)
        assert len(result["tokens"]) == len(weights)


async def test_a_pair_of_tokens(client: httpx.AsyncClient, oracle: Oracle) -> None:
    body = {"inputs": TEXTS[::2], "layer": 0, "head": 0, "queries": [3, -1], "keys": [1]}
    reply = (await client.post(ROUTE, json=body)).json()
    for text, result in zip(TEXTS[::2], reply["results"], strict=True):
        queries, keys, weights = oracle.compared(text, 0, 0)
        assert (result["queries"], result["keys"]) == ([3, len(weights) - 1], [1])
        np.testing.assert_allclose(result["query_vectors"], queries[[3, -1]], atol=1e-4)
        np.testing.assert_allclose(result["key_vectors"], keys[[1]], atol=1e-4)
        scores = queries[[3, -1]] @ keys[[1]].T * reply["scale"]
        np.testing.assert_allclose(result["scores"], scores, atol=1e-4)
        np.testing.assert_allclose(result["weights"], weights[[3, -1]][:, [1]], atol=1e-5)


async def test_of_an_ablated_run(client: httpx.AsyncClient) -> None:
    """Scores of the next layer change, and their softmax equals /attention of the ablated run."""
    ablate = [{"layer": 0, "head": 0}, {"layer": 0, "head": -1}]
    body = {"inputs": TEXTS[0], "layer": 1, "head": 0}
    whole, cut = [
        (await client.post(ROUTE, json=body | more)).json()["results"][0]
        for more in ({}, {"ablate": ablate})
    ]
    assert np.abs(np.subtract(whole["scores"], cut["scores"])).max() > 1e-3
    asked = {"inputs": TEXTS[0], "layers": [1], "heads": [0], "ablate": ablate}
    [result] = (await client.post("/attention", json=asked)).json()["results"]
    softmax = torch.softmax(torch.tensor(cut["scores"]), -1).numpy()
    np.testing.assert_allclose(softmax, result["attention"][0][0], atol=1e-5)
    np.testing.assert_allclose(cut["weights"], result["attention"][0][0], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layer": 2}, "layer: 2 is not in -2 … 1"),
        ({"head": -3}, "head: -3 is not in -2 … 1"),
        ({"layer": None}, "layer"),
        ({"queries": [40]}, "queries: 40 is not in -9 … 8, the tokens of inputs[0]"),
        ({"keys": [1, -8]}, "keys: one of inputs[0] is listed twice"),
        ({"queries": []}, "at least one token"),
        ({"ablate": [{"layer": 5, "head": 0}]}, "ablate: layer: 5 is not in"),
        ({"heads": [0]}, "heads"),
    ],
    ids=str,
)
async def test_what_is_refused(artifact: Artifact, changes: dict[str, Any], says: str) -> None:
    body = {"inputs": TEXTS[0], "layer": 0, "head": 0} | changes
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        assert_problem(await client.post(ROUTE, json=body), 422, says)


async def test_a_long_text_is_refused(artifact: Artifact) -> None:
    body = {"inputs": "word " * 600, "layer": 0, "head": 0}
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        reply = await client.post(ROUTE, json=body)
    assert_problem(reply, 422, "inputs[0] has 602 tokens", "Tokenizer")


async def test_a_reply_that_would_be_too_large_is_refused_beforehand(artifact: Artifact) -> None:
    body = {"inputs": ["word " * 400] * 8, "layer": 0, "head": 0}
    engine = FakeEngine(artifact.manifest.config)
    async with serving(artifact, engine, max_response_bytes=2**22) as client:
        assert_problem(await client.post(ROUTE, json=body), 413, "ask for fewer texts")
        reply = await client.post(ROUTE, json=body | {"queries": [1], "keys": [2]})
        assert reply.status_code == 200


async def test_the_predicted_size_is_on_the_safe_side(artifact: Artifact) -> None:
    body = {"inputs": ["word " * 100, "no"], "layer": 0, "head": 0}
    engine = FakeEngine(artifact.manifest.config)
    async with serving(artifact, engine) as client:
        size = len((await client.post(ROUTE, json=body)).content)
    async with serving(artifact, engine, max_response_bytes=size - 1) as client:
        assert_problem(await client.post(ROUTE, json=body), 413, "the reply would have about")
