"""`POST /v2/rerank` in Cohere's form."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.api.cohere.rerank import RANK_BYTES
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.api.tei import tasks
from tests.service.api.tei.tasks import LABELS, RANKS, ScoringEngine, serving_task
from tests.service.harness import Client

pytestmark = pytest.mark.anyio
URL = "/v2/rerank"
BODY = {"model": "rerank-v3.5", "query": QUERY, "documents": TEXTS}


class Saturated(ScoringEngine):
    """Engine whose logits are all so large that their sigmoid is 1.0 in float32."""

    def expected(self, task: Any) -> Any:
        output = super().expected(task)
        if output.scores is not None:
            output.scores = output.scores + np.float32(30)
        return output


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


async def test_raw_scores_are_logits(ranking: Client, ranker: Ranker) -> None:
    logits = ranker.logits([(QUERY, text) for text in TEXTS])
    for url in (URL, "/v1/rerank"):
        results = (await ranking.post(url, json=BODY | {"raw_scores": True})).json()["results"]
        found = {one["index"]: one["relevance_score"] for one in results}
        assert [found[index] for index in range(len(TEXTS))] == pytest.approx(logits, abs=1e-4)


@pytest.mark.parametrize(
    ("url", "body", "raw"),
    [
        (URL, BODY, {"raw_scores": True}),
        ("/v1/rerank", BODY, {"raw_scores": True}),
        ("/rerank", BODY, {"raw_scores": True}),
        ("/rerank", {"query": QUERY, "texts": TEXTS}, {"raw_scores": True}),
        (URL, BODY | {"truncation_side": "right"}, {"use_activation": False}),
    ],
    ids=["Cohere", "Jina", "Infinity", "text-embeddings-inference", "vLLM"],
)
async def test_saturated_scores_keep_the_order_of_their_logits(
    artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    body: dict[str, Any],
    raw: dict[str, Any],
) -> None:
    """Every score is 1.0 in float32; the largest logit is still first, also of the first few."""
    monkeypatch.setattr(tasks, "ScoringEngine", Saturated)
    async with serving_task(artifact, RANKS) as client:

        async def ranked(**fields: Any) -> list[tuple[int, float]]:
            found = (await client.post(url, json=body | fields)).json()
            results = found if isinstance(found, list) else found["results"]
            score = "score" if isinstance(found, list) else "relevance_score"
            return [(one["index"], one[score]) for one in results]

        by_logit = await ranked(**raw)
        logits = [logit for _, logit in by_logit]
        assert logits == sorted(logits, reverse=True)
        assert min(logits) > 20
        assert len({*logits}) > 3
        assert await ranked() == [(index, 1.0) for index, _ in by_logit]


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
