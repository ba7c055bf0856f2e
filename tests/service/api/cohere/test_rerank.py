"""`POST /v2/rerank` in Cohere's form."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.api.cohere.rerank import RANK_BYTES
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.api.tei.tasks import LABELS, RANKS, serving_task
from tests.service.harness import Client

pytestmark = pytest.mark.anyio
URL = "/v2/rerank"
BODY = {"model": "rerank-v3.5", "query": QUERY, "documents": TEXTS}


async def test_documents_are_ranked_as_sentence_transformers_scores_them(
    ranking: Client, ranker: Ranker
) -> None:
    """Also one that is far too long, which is cut."""
    scores = ranker.scores(QUERY, TEXTS)
    order = np.argsort(-scores, kind="stable")
    for most in (None, 2, 99):
        reply = (await ranking.post(URL, json=BODY | {"top_n": most})).json()
        assert reply.keys() == {"id", "results", "meta"}
        assert uuid.UUID(reply["id"])
        units = {"search_units": 1}
        assert (
            reply["meta"].items()
            >= {"api_version": {"version": "2"}, "billed_units": units}.items()
        )
        assert [one["index"] for one in reply["results"]] == order[:most].tolist()
        for one in reply["results"]:
            assert one.keys() == {"index", "relevance_score"}
            assert one["relevance_score"] == pytest.approx(float(scores[one["index"]]), abs=1e-4)


async def test_only_the_first_tokens_of_a_document_are_ranked(
    ranking: Client, ranker: Ranker
) -> None:
    documents = ["the cat . x y z", "a b", "c b a the cat"]
    cut = ["the cat .", "a b", "c b a"]
    scores = ranker.scores(QUERY, cut)
    body = {"query": QUERY, "documents": [{"text": one} for one in documents]}
    reply = (await ranking.post(URL, json=body | {"max_tokens_per_doc": 3})).json()
    found = {one["index"]: one["relevance_score"] for one in reply["results"]}
    assert [found[index] for index in range(3)] == pytest.approx(scores.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "fields", [{"documents": []}, {"documents": [1]}, {"top_n": 0}, {"max_tokens_per_doc": 0}]
)
async def test_refusals(ranking: Client, fields: dict[str, Any]) -> None:
    refused = await ranking.post(URL, json=BODY | fields)
    assert (refused.status_code, refused.json().keys()) == (400, {"message"})
    (name,) = fields
    assert name in refused.json()["message"]


async def test_a_model_that_ranks_nothing_and_a_reply_that_is_too_large(artifact: Artifact) -> None:
    async with serving_task(artifact, LABELS) as client:
        assert (await client.post(URL, json=BODY)).status_code == 400
    limit = RANK_BYTES * len(TEXTS)
    for bytes_, status in ((limit, 200), (limit - 1, 413)):
        async with serving_task(artifact, RANKS, max_response_bytes=bytes_) as client:
            answer = await client.post(URL, json=BODY)
            assert answer.status_code == status
            assert status != 200 or len(answer.content) <= bytes_ + 200
