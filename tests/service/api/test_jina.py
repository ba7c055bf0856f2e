"""Requests, replies and errors in the forms of Jina and of Cohere's first version."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.api.cohere import jina_error_response as error_response
from service.errors import NoTaskHead, ServiceError, UnknownModel, Unprocessable
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.api.tei.tasks import RANKS, serving_task
from tests.service.harness import Client

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("error", "status"),
    [(UnknownModel("there are: a"), 404), (NoTaskHead("no"), 400), (Unprocessable("no"), 422)],
)
def test_form(error: ServiceError, status: int) -> None:
    response = error_response(error, "an-id")
    assert response.status_code == status
    body = {"detail": error.detail, "message": error.detail}
    assert json.loads(bytes(response.body)) == body


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
