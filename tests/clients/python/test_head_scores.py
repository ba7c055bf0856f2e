"""Head scores by the client: from the application itself, and from replies in its format."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from headscope import (
    AsyncClient,
    Client,
    HeadscopeError,
    HeadScores,
    InvalidReply,
    Refused,
    head_scores,
)
from headscope.reading import read_info
from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from tests.clients.python.fake import INFO, URL
from tests.service.harness import serving

TEXTS = ["The cat sat.", "", "a dog", ("What?", "The cat.")]


@pytest.mark.anyio
async def test_they_are_those_of_the_application(artifact: Artifact) -> None:
    """More texts than fit into a request, with a real engine; products add up to the scores."""
    async with (
        serving(artifact, OnnxEngine(artifact), max_client_batch_size=2) as plain,
        AsyncClient("http://localhost", transport=httpx.ASGITransport(plain.app)) as client,
    ):
        asked = {"layer": -1, "head": 0, "queries": [-1, 0], "backend": "onnx"}
        found = [
            *await client.head_scores(TEXTS[:3], **asked),
            *await client.head_scores(TEXTS[3:], **asked),
        ]
        for one, text in zip(found, TEXTS, strict=True):
            reply = (await plain.post("/attention/scores", json={"inputs": [text], **asked})).json()
            [result] = reply["results"]
            size = len(result["tokens"])
            assert (one.layer, one.head, one.scale) == (1, 0, reply["scale"])
            assert (one.queries, one.keys) == ([size - 1, 0], list(range(size)))
            assert (one.tokens, one.texts) == (
                result["tokens"],
                (text,) if isinstance(text, str) else text,
            )
            for name in ("query_vectors", "key_vectors", "scores", "weights"):
                values = getattr(one, name)
                assert values.dtype == np.float32
                np.testing.assert_allclose(values, result[name], rtol=1e-6)
            assert one.products.shape == (2, size, one.query_vectors.shape[1])
            np.testing.assert_allclose(one.products.sum(-1), one.scores, atol=1e-5)
            np.testing.assert_allclose(one.weights.sum(-1), 1, atol=1e-5)
        with pytest.raises(Refused, match="layer"):
            await client.head_scores("a", layer=99, head=0)


def content(**more):
    result = {
        "tokens": ["a", "b"],
        "token_ids": [1, 2],
        "segment_ids": [0, 0],
        "offsets": [[0, 1], [2, 3]],
        "truncated": False,
        "queries": [1],
        "query_vectors": [[1.0, -2.0]],
        "key_vectors": [[3.0, 1.0], [0.5, 0.0]],
        "scores": [[1.0, 2.0]],
        "weights": [[0.25, 0.75]],
    }
    head = {"model": "m", "backend": "onnx", "layer": 1, "head": 0, "scale": 0.5}
    return json.dumps(head | {"results": [result | more.pop("result", {})]} | more).encode()


def test_products_are_of_features():
    (one,) = head_scores.read_head_scores(content(), ["a b"])
    assert isinstance(one, HeadScores)
    assert one.products.tolist() == [[[1.5, -1.0], [0.25, 0.0]]]
    (one,) = head_scores.read_head_scores(content(scale=None), ["a b"])
    with pytest.raises(HeadscopeError, match="not sums of products"):
        _ = one.products


def test_what_is_asked_for_is_weighed():
    info = read_info(json.dumps(INFO).encode())
    whole = head_scores.head_scores("a", layer=0, head=1)
    assert whole.body == {"layer": 0, "head": 1}
    assert whole.weigh(100, info) > 2 * 100 * 100
    part = head_scores.head_scores("a", layer=0, head=1, queries=[1], keys=[2, 3])
    assert part.weigh(100, info) < 1000


def test_scores_of_another_shape_are_no_reply():
    def answer(request):
        if request.url.path == "/info":
            return httpx.Response(200, json=INFO)
        return httpx.Response(200, content=content(result={"scores": [[1.0]]}))

    with (
        Client(URL, transport=httpx.MockTransport(answer)) as client,
        pytest.raises(InvalidReply),
    ):
        client.head_scores("a b", layer=1, head=0)
