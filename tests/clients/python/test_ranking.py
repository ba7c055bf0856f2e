"""Rankings, scores and head scores of the client."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer

from headscope import (
    AsyncClient,
    Client,
    HeadscopeError,
    HeadScores,
    InvalidReply,
    Rank,
    Refused,
    fields,
    heads,
    ranking,
)
from headscope.reading import read_info
from model.artifact.manifest import Artifact
from service.api.tei.tokenize import TokenizeRequest
from service.api.vllm.score import ScoreRequest
from service.engines.onnx import OnnxEngine
from tests.clients.python.fake import INFO, URL, asked
from tests.service.harness import serving

pytestmark = pytest.mark.anyio

DOCUMENTS = ["the cats", "a dog"]
PROMPTS = {"query": {"name": "query", "text": "q: "}, "document": None}
HEAD = {"model": "m", "backend": "onnx", "scoring": "logit", "usage": {}, "prompts": PROMPTS}
EXPLAINED = {
    "index": 1,
    "score": 0.5,
    "tokens": ["a", "dog"],
    "token_ids": [1, 2],
    "offsets": [[0, 1], [2, 5]],
    "truncated": False,
    "shares": [0.25, None],
    "completeness_error": None,
    "partial": True,
    "computed": 1,
    "parts": {"dense": 0.5, "sparse": 0.25, "multivector": 0.75},
    "unknown": [1],
}
CONTRAST = {
    "documents": [1, 0],
    "ranks": [1, 2],
    "difference": 0.25,
    "words": [{"word": "dog", "shares": [0.25, 0.0], "difference": 0.25, "spans": [[[2, 5]], []]}],
    "other": [0.5, 0.25],
    "completeness_error": 1e-8,
    "without": [
        [{"word": "dog", "score": 0.1, "rank": 2}],
        [{"word": "cats", "score": None, "rank": None}],
    ],
    "partial": True,
    "computed": [1, 0],
}


def test_tokens_and_their_shares():
    content = {**HEAD, "method": "occlusion", "results": [EXPLAINED]}
    found = ranking.read_ranking(content, DOCUMENTS)
    (document,) = found.documents
    assert (document.text, document.score, document.partial) == ("a dog", 0.5, True)
    assert [word.text for word in document.tokenized.words] == ["a", "dog"]
    np.testing.assert_array_equal(document.shares, np.array([0.25, math.nan], np.float32))
    assert (found.method, found.contrast) == ("occlusion", None)
    assert (found.prompts, document.unknown) == (("query", None), (1,))
    assert document.parts == EXPLAINED["parts"]
    assert repr(document) == "RankedDocument(index=1, score=0.5000, 'a dog')"


def test_a_contrast():
    results = [{"index": n, "score": 1.0 - n} for n in (1, 0)]
    content = {**HEAD, "results": results, "contrast": CONTRAST}
    found = ranking.read_ranking(content, DOCUMENTS)
    assert [document.shares for document in found.documents] == [None, None]
    contrast = found.contrast
    assert contrast.words == (ranking.WordDifference("dog", (0.25, 0.0), 0.25, (((2, 5),), ())),)
    assert contrast.without[1] == (ranking.WithoutWord("cats", None, None),)
    assert (contrast.ranks, contrast.other, contrast.computed) == ((1, 2), (0.5, 0.25), (1, 0))
    assert repr(contrast) == "Contrast(documents=(1, 0), difference=+0.2500, dog=+0.250)"


def answer(request: httpx.Request) -> httpx.Response:
    body = json.loads(request.content)
    assert body == {"query": "q", "documents": DOCUMENTS, "top_n": 1}
    return httpx.Response(200, json={**HEAD, "results": [{"index": 1, "score": 2}]})


@pytest.mark.anyio
async def test_all_documents_go_into_one_request():
    with Client(URL, transport=httpx.MockTransport(answer)) as client:
        assert client.explain_ranking("q", DOCUMENTS, top_n=1).documents[0].text == "a dog"
        with pytest.raises(ValueError, match="documents is empty"):
            client.explain_ranking("q", [])
    async with AsyncClient(URL, transport=httpx.MockTransport(answer)) as client:
        found = await client.explain_ranking("q", DOCUMENTS, top_n=1)
    assert found.documents[0].score == 2.0


def test_another_services_reply():
    def other(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"results": [{"index": 9, "score": 1}], **HEAD})

    with (
        Client(URL, transport=httpx.MockTransport(other)) as client,
        pytest.raises(InvalidReply, match="not from this service"),
    ):
        client.explain_ranking("q", DOCUMENTS)


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
    return head | {"results": [result | more.pop("result", {})]} | more


def test_products_are_of_features():
    (one,) = heads.read_head_scores(content(), ["a b"])
    assert isinstance(one, HeadScores)
    assert one.products.tolist() == [[[1.5, -1.0], [0.25, 0.0]]]
    (one,) = heads.read_head_scores(content(scale=None), ["a b"])
    with pytest.raises(HeadscopeError, match="not sums of products"):
        _ = one.products


def test_what_is_asked_for_is_weighed():
    info = read_info(INFO)
    whole = heads.head_scores("a", layer=0, head=1)
    assert whole.body == {"layer": 0, "head": 1}
    assert whole.weigh(100, info) > 2 * 100 * 100
    part = heads.head_scores("a", layer=0, head=1, queries=[1], keys=[2, 3])
    assert part.weigh(100, info) < 1000


def test_scores_of_another_shape_are_no_reply():
    def answer(request):
        if request.url.path == "/info":
            return httpx.Response(200, json=INFO)
        return httpx.Response(200, json=content(result={"scores": [[1.0]]}))

    with (
        Client(URL, transport=httpx.MockTransport(answer)) as client,
        pytest.raises(InvalidReply),
    ):
        client.head_scores("a b", layer=1, head=0)


QUERY = "the cat a b"
SENTENCES = ["the cat . x", "y z the the", "a b c d e f", "c b a", "x"]
QUERIES = [QUERY, "x", "the the cat", "a", "b c"]
SIDES = {f"{side}_{n}" for side in ("text", "data") for n in (1, 2)}
SIDES |= {"queries", "documents", "items", "inputs"}


@contextlib.asynccontextmanager
async def client_of(artifact: Artifact, **settings: Any) -> AsyncIterator[AsyncClient]:
    async with (
        serving(artifact, **settings) as plain,
        AsyncClient("http://localhost", transport=httpx.ASGITransport(plain.app)) as client,
    ):
        yield client


async def test_a_cross_encoder(exported: Callable[..., Artifact], cross_checkpoint: Path) -> None:
    """Requests of two texts: one query, one query per text, and the ranks of CrossEncoder.rank."""
    theirs = CrossEncoder(str(cross_checkpoint), device="cpu", max_length=36)
    ranks = theirs.rank(QUERY, SENTENCES, activation_fn=torch.nn.Sigmoid())
    each = theirs.predict(
        [*zip(QUERIES, SENTENCES, strict=True)], activation_fn=torch.nn.Identity()
    )
    async with client_of(exported(cross_checkpoint, "cross"), max_client_batch_size=2) as client:
        found = await client.rank(QUERY, SENTENCES)
        assert [one.index for one in found] == [one["corpus_id"] for one in ranks]
        scores = [float(one["score"]) for one in ranks]
        np.testing.assert_allclose([one.score for one in found], scores, atol=1e-4)
        assert [one.text for one in found] == [SENTENCES[one.index] for one in found]
        pairwise = await client.score(QUERIES, SENTENCES, use_activation=False)
        np.testing.assert_allclose(pairwise, each, atol=1e-4)
        assert (pairwise.shape, pairwise.dtype) == ((len(SENTENCES),), np.float32)


async def test_a_model_of_vectors(artifact: Artifact, small_checkpoint: Path) -> None:
    theirs = SentenceTransformer(str(small_checkpoint), device="cpu")
    expected = theirs.similarity(theirs.encode(QUERIES), theirs.encode(SENTENCES)).numpy()
    async with client_of(artifact, max_client_batch_size=2) as client:
        found = await client.score(QUERY, SENTENCES)
        np.testing.assert_allclose(found, expected[0], atol=2e-5)
        pairwise = await client.score(QUERIES, SENTENCES)
        np.testing.assert_allclose(pairwise, np.diag(expected), atol=2e-5)
        ranks = await client.rank(QUERY, SENTENCES)
        assert [one.index for one in ranks] == np.argsort(-expected[0]).tolist()
        assert (await client.score(QUERY, [])).shape == (0,)
        assert await client.rank(QUERY, []) == []


async def test_a_late_interaction_model(late_artifact: Artifact, late_checkpoint: Path) -> None:
    theirs = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    vectors = theirs.encode_query(QUERIES), theirs.encode_document(SENTENCES)
    expected = theirs.similarity(*vectors).numpy()
    async with client_of(late_artifact) as client:
        np.testing.assert_allclose(await client.score(QUERY, SENTENCES), expected[0], atol=1e-4)
        found = await client.score(QUERIES, SENTENCES)
        np.testing.assert_allclose(found, np.diag(expected), atol=1e-4)


async def test_texts_that_are_refused(artifact: Artifact) -> None:
    """For one query and for one query per text; errors use the caller's indices."""
    long = "word " * 600
    async with client_of(artifact, max_client_batch_size=3) as client:
        whole = await client.score(QUERY, SENTENCES)
        found = await client.score(QUERY, [SENTENCES[0], long, *SENTENCES[1:]], on_error="return")
        assert isinstance(found[1], Refused)
        assert str(found[1]).startswith("400: text_2[1] has 602 tokens")
        np.testing.assert_allclose([found[0], *found[2:]], whole, atol=1e-6)
        found = await client.score([*QUERIES[:3], long], [*SENTENCES[:3], "a"], on_error="return")
        assert [isinstance(one, Refused) for one in found] == [False, False, False, True]
        assert found[3].index == 3
        ranks = await client.rank(QUERY, [long, *SENTENCES], on_error="return")
        assert [isinstance(one, Rank) for one in ranks] == [*[True] * 5, False]
        assert {one.index for one in ranks} == set(range(6))
        with pytest.raises(Refused, match=r"text_1\[0\] has 602 tokens"):
            await client.score(long, SENTENCES, on_error="return")
    with pytest.raises(ValueError, match="1 queries of 5 inputs"):
        await client.score([QUERY], SENTENCES)


def test_a_reply_without_a_score_a_text(kind: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"index": 1, "score": 0.5}]})

    with pytest.raises(InvalidReply):
        asked(kind, "score", answer, "q", ["a"])


@pytest.mark.parametrize(
    ("kind", "schema"),
    [(fields.ScoreFields, ScoreRequest), (fields.TokenizeFields, TokenizeRequest)],
)
def test_fields_are_the_routes(kind: Any, schema: Any) -> None:
    assert kind.__annotations__.keys() == schema.model_fields.keys() - SIDES
