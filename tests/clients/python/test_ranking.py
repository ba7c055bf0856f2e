"""Rankings of the client, from replies in the service's own format."""

from __future__ import annotations

import json
import math

import httpx
import numpy as np
import pytest

from headscope import AsyncClient, Client, InvalidReply, ranking
from tests.clients.python.fake import URL

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
    content = json.dumps({**HEAD, "method": "occlusion", "results": [EXPLAINED]}).encode()
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
    content = json.dumps({**HEAD, "results": results, "contrast": CONTRAST}).encode()
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
