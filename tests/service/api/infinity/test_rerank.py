"""`POST /rerank` with `documents`, in Infinity's form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.api.infinity.rerank import RANK_BYTES
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.api.tei.tasks import LABELS, RANKS, serving_task
from tests.service.harness import Client

pytestmark = pytest.mark.anyio
BODY = {"query": QUERY, "documents": TEXTS}


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("named", [False, True])
async def test_documents_are_ranked_as_sentence_transformers_scores_them(
    ranking: Client, ranker: Ranker, raw: bool, named: bool
) -> None:
    """Also one that is far too long, which is cut; a document is a plain string, or null."""
    scores = (
        ranker.logits([(QUERY, text) for text in TEXTS]) if raw else ranker.scores(QUERY, TEXTS)
    )
    body = BODY | {"raw_scores": raw, "return_documents": named, "top_n": 4, "model": "other"}
    response = await ranking.post("/rerank", json=body)
    reply = response.json()
    assert reply.keys() - {"warnings"} == {"object", "results", "model", "usage", "id", "created"}
    assert (reply["object"], reply["model"]) == ("rerank", "cross")
    assert response.headers["x-model"] == "cross"
    tokens = int(response.headers["x-compute-tokens"])
    assert reply["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    order = np.argsort(-scores, kind="stable")[:4]
    assert [one["index"] for one in reply["results"]] == order.tolist()
    for one, index in zip(reply["results"], order, strict=True):
        assert one.keys() == {"index", "relevance_score", "document"}
        assert one["relevance_score"] == pytest.approx(float(scores[index]), abs=1e-4)
        assert one["document"] == (TEXTS[index] if named else None)


async def test_white_space_around_texts_is_left_out(ranking: Client) -> None:
    spaced = {"query": f" {QUERY}\n", "documents": [f"\t{text} " for text in TEXTS]}
    plain, other = [(await ranking.post("/rerank", json=one)).json() for one in (BODY, spaced)]
    assert plain["results"] == other["results"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"documents": []}, 422),
        ({"documents": ["a"] * 2049}, 422),
        ({"documents": ["a", 1]}, 422),
        ({"top_n": 0}, 422),
        ({"query": "a" * 122_881}, 422),
        ({"query": None}, 422),
    ],
)
async def test_refusals_have_infinitys_form(
    ranking: Client, fields: dict[str, Any], status: int
) -> None:
    response = await ranking.post("/rerank", json=BODY | fields)
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == status


async def test_a_model_that_ranks_nothing_is_a_400(artifact: Artifact) -> None:
    async with serving_task(artifact, LABELS) as client:
        response = await client.post("/rerank", json=BODY)
        assert (response.status_code, response.json().keys()) == (400, {"error"})
        assert "3 labels and is not a reranker" in response.json()["error"]["message"]


async def test_a_reply_is_bounded_before_anything_is_computed(artifact: Artifact) -> None:
    body = {"query": "a", "documents": ["b"] * 3}
    for limit, status in ((3 * RANK_BYTES, 200), (3 * RANK_BYTES - 1, 413)):
        async with serving_task(artifact, RANKS, max_response_bytes=limit) as client:
            response = await client.post("/rerank", json=body)
            assert (response.status_code, len(response.content) <= 3 * RANK_BYTES + 200) == (
                status,
                True,
            )
