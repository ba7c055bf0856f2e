"""Rankings and scores of the client."""

from __future__ import annotations

import math

import httpx
import numpy as np
import pytest

from headscope import Rank, Refused, WithoutWord, WordDifference
from headscope.ranking import read_ranking
from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from tests.clients.python.fake import asked, client_of, sent
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


def test_tokens_and_their_shares_and_a_contrast():
    results = [EXPLAINED, {"index": 0, "score": 0}]
    content = {**HEAD, "method": "occlusion", "results": results, "contrast": CONTRAST}
    found = read_ranking(content, DOCUMENTS)
    document, other = found.documents
    assert (document.text, document.score, document.partial) == ("a dog", 0.5, True)
    assert [word.text for word in document.tokenized.words] == ["a", "dog"]
    np.testing.assert_array_equal(document.shares, np.array([0.25, math.nan], np.float32))
    assert (found.method, found.prompts) == ("occlusion", ("query", None))
    assert (document.unknown, document.parts) == ((1,), EXPLAINED["parts"])
    assert repr(document) == "RankedDocument(index=1, score=0.5000, 'a dog')"
    assert (other.score, other.shares, other.tokenized) == (0.0, None, None)
    contrast = found.contrast
    assert contrast.words == (WordDifference("dog", (0.25, 0.0), 0.25, (((2, 5),), ())),)
    assert contrast.without[1] == (WithoutWord("cats", None, None),)
    assert (contrast.ranks, contrast.other, contrast.computed) == ((1, 2), (0.5, 0.25), (1, 0))
    assert repr(contrast) == "Contrast(documents=(1, 0), difference=+0.2500, dog=+0.250)"


def test_all_documents_go_into_one_request(kind):
    def answer(request: httpx.Request) -> httpx.Response:
        assert sent(request) == {"query": "q", "documents": DOCUMENTS, "top_n": 1}
        return httpx.Response(200, json={**HEAD, "results": [{"index": 1, "score": 2}]})

    found = asked(kind, "explain_ranking", answer, "q", DOCUMENTS, fields={"top_n": 1})
    assert [(one.text, one.score) for one in found.documents] == [("a dog", 2.0)]
    assert (found.method, found.contrast) == (None, None)
    with pytest.raises(ValueError, match="documents is empty"):
        asked(kind, "explain_ranking", answer, "q", [])


QUERY = "the cat a b"
SENTENCES = ["the cat . x", "y z the the", "a b c d e f", "c b a", "x"]
QUERIES = [QUERY, "x", "the the cat", "a", "b c"]


async def test_scores_are_those_of_the_application_and_order_the_ranks(artifact: Artifact) -> None:
    """With two texts per request: one query, one query per text, and refused texts."""
    engine, long = FakeEngine(artifact.manifest.config), "word " * 600
    async with (
        serving(artifact, engine, max_client_batch_size=2) as plain,
        client_of(plain) as client,
    ):
        expected = []
        for query, text in zip(QUERIES, SENTENCES, strict=True):
            for first in (QUERY, query):
                reply = await plain.post("/score", json={"text_1": first, "text_2": text})
                expected.append(reply.json()["data"][0]["score"])
        whole = await client.score(QUERY, SENTENCES)
        np.testing.assert_allclose(whole, expected[::2], atol=1e-6)
        assert (whole.shape, whole.dtype) == ((len(SENTENCES),), np.float32)
        pairwise = await client.score(QUERIES, SENTENCES)
        np.testing.assert_allclose(pairwise, expected[1::2], atol=1e-6)
        ranks = await client.rank(QUERY, SENTENCES)
        assert [one.index for one in ranks] == np.argsort(-whole, kind="stable").tolist()
        assert [one.text for one in ranks] == [SENTENCES[one.index] for one in ranks]
        assert (await client.score(QUERY, [])).shape == (0,)
        assert await client.rank(QUERY, []) == []

        found = await client.score(QUERY, [SENTENCES[0], long, *SENTENCES[1:]], on_error="return")
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
