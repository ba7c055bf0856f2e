"""Scores and ranks of the client against sentence-transformers, for each kind of model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer

from headscope import AsyncClient, InvalidReply, Rank, Refused, fields
from model.artifact.manifest import Artifact
from service.api.tei.tokenize import TokenizeRequest
from service.api.vllm.score import ScoreRequest
from tests.clients.python.fake import asked
from tests.service.harness import serving

pytestmark = pytest.mark.anyio
QUERY = "the cat a b"
TEXTS = ["the cat . x", "y z the the", "a b c d e f", "c b a", "x"]
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
    ranks = theirs.rank(QUERY, TEXTS, activation_fn=torch.nn.Sigmoid())
    each = theirs.predict([*zip(QUERIES, TEXTS, strict=True)], activation_fn=torch.nn.Identity())
    async with client_of(exported(cross_checkpoint, "cross"), max_client_batch_size=2) as client:
        found = await client.rank(QUERY, TEXTS)
        assert [one.index for one in found] == [one["corpus_id"] for one in ranks]
        scores = [float(one["score"]) for one in ranks]
        np.testing.assert_allclose([one.score for one in found], scores, atol=1e-4)
        assert [one.text for one in found] == [TEXTS[one.index] for one in found]
        pairwise = await client.score(QUERIES, TEXTS, use_activation=False)
        np.testing.assert_allclose(pairwise, each, atol=1e-4)
        assert (pairwise.shape, pairwise.dtype) == ((len(TEXTS),), np.float32)


async def test_a_model_of_vectors(artifact: Artifact, small_checkpoint: Path) -> None:
    theirs = SentenceTransformer(str(small_checkpoint), device="cpu")
    expected = theirs.similarity(theirs.encode(QUERIES), theirs.encode(TEXTS)).numpy()
    async with client_of(artifact, max_client_batch_size=2) as client:
        found = await client.score(QUERY, TEXTS)
        np.testing.assert_allclose(found, expected[0], atol=2e-5)
        pairwise = await client.score(QUERIES, TEXTS)
        np.testing.assert_allclose(pairwise, np.diag(expected), atol=2e-5)
        ranks = await client.rank(QUERY, TEXTS)
        assert [one.index for one in ranks] == np.argsort(-expected[0]).tolist()
        assert (await client.score(QUERY, [])).shape == (0,)
        assert await client.rank(QUERY, []) == []


async def test_a_late_interaction_model(late_artifact: Artifact, late_checkpoint: Path) -> None:
    theirs = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    vectors = theirs.encode_query(QUERIES), theirs.encode_document(TEXTS)
    expected = theirs.similarity(*vectors).numpy()
    async with client_of(late_artifact) as client:
        np.testing.assert_allclose(await client.score(QUERY, TEXTS), expected[0], atol=1e-4)
        found = await client.score(QUERIES, TEXTS)
        np.testing.assert_allclose(found, np.diag(expected), atol=1e-4)


async def test_texts_that_are_refused(artifact: Artifact) -> None:
    """For one query and for one query per text; errors use the caller's indices."""
    long = "word " * 600
    async with client_of(artifact, max_client_batch_size=3) as client:
        whole = await client.score(QUERY, TEXTS)
        found = await client.score(QUERY, [TEXTS[0], long, *TEXTS[1:]], on_error="return")
        assert isinstance(found[1], Refused)
        assert str(found[1]).startswith("400: text_2[1] has 602 tokens")
        np.testing.assert_allclose([found[0], *found[2:]], whole, atol=1e-6)
        found = await client.score([*QUERIES[:3], long], [*TEXTS[:3], "a"], on_error="return")
        assert [isinstance(one, Refused) for one in found] == [False, False, False, True]
        assert found[3].index == 3
        ranks = await client.rank(QUERY, [long, *TEXTS], on_error="return")
        assert [isinstance(one, Rank) for one in ranks] == [*[True] * 5, False]
        assert {one.index for one in ranks} == set(range(6))
        with pytest.raises(Refused, match=r"text_1\[0\] has 602 tokens"):
            await client.score(long, TEXTS, on_error="return")
    with pytest.raises(ValueError, match="1 queries of 5 inputs"):
        await client.score([QUERY], TEXTS)


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
