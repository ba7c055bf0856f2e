"""`POST /v1/rerank` as Jina and Cohere's first version have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.api.tei.tasks import RANKS, serving_task
from tests.service.harness import Client

pytestmark = pytest.mark.anyio
URL = "/v1/rerank"
BODY: dict[str, Any] = {"model": "jina-reranker-v2", "query": QUERY, "documents": TEXTS}


async def test_replies_have_the_fields_of_both(ranking: Client, ranker: Ranker) -> None:
    """Documents come as objects unless `return_documents` is false, as Jina's do."""
    scores = ranker.scores(QUERY, TEXTS)
    for asked in (None, True, False):
        fields = {} if asked is None else {"return_documents": asked}
        answer = await ranking.post(URL, json=BODY | fields | {"top_n": 3})
        reply = answer.json()
        assert reply.keys() - {"warnings"} == {"id", "model", "usage", "results", "meta"}
        tokens = int(answer.headers["x-compute-tokens"])
        assert reply["usage"] == {"total_tokens": tokens, "prompt_tokens": tokens}
        assert reply["meta"]["api_version"] == {"version": "1"}
        assert reply["model"] == answer.headers["x-model"] == "cross"
        order = np.argsort(-scores, kind="stable")[:3].tolist()
        assert [one["index"] for one in reply["results"]] == order
        for one in reply["results"]:
            assert one["relevance_score"] == pytest.approx(float(scores[one["index"]]), abs=1e-4)
            text = None if asked is False else {"text": TEXTS[one["index"]]}
            assert one.get("document") == text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rank_fields": ["title", "text"]}, "rank_fields"),
        ({"return_embeddings": True}, "return_embeddings"),
        ({"documents": [{"image": "https://a/b"}]}, "documents[0] is neither"),
        ({"top_n": 0}, "top_n"),
        ({"top_k": 2}, "top_k: it would change the reply"),
    ],
)
async def test_refusals(ranking: Client, fields: dict[str, Any], says: str) -> None:
    refused = await ranking.post(URL, json=BODY | fields)
    assert (refused.status_code, refused.json().keys()) == (422, {"detail", "message"})
    assert says in refused.json()["message"]
    assert (await ranking.post(URL, json=BODY | {"rank_fields": ["text"]})).status_code == 200


async def test_documents_that_are_given_back_count(artifact: Artifact) -> None:
    async with serving_task(artifact, RANKS, max_response_bytes=1000) as client:
        body = {"query": "a", "documents": ["b" * 200]}
        assert (await client.post(URL, json=body)).status_code == 413
        assert (await client.post(URL, json=body | {"return_documents": False})).status_code == 200
