"""`POST /score` and `/v1/score` in vLLM's form."""

from __future__ import annotations

import time
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.api.vllm.score import SCORE_BYTES
from tests.service.api.tei.tasks import LABELS, RANKS, serving_task
from tests.service.harness import Client, serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
BODY = {"text_1": "what is it", "text_2": ["a", "b c"]}


async def test_the_reply_has_vllms_form(client: Client) -> None:
    """At both paths, under each of its names; in the order of the request, not sorted."""
    answer = await client.post("/score", json=BODY | {"model": "other", "user": "u"})
    reply = answer.json()
    assert reply.keys() - {"warnings"} == {"id", "object", "created", "model", "data", "usage"}
    assert reply["id"] == f"score-{answer.headers['x-request-id']}"
    assert (reply["object"], reply["model"]) == ("list", answer.headers["x-model"])
    assert abs(reply["created"] - time.time()) < 60
    tokens = int(answer.headers["x-compute-tokens"])
    assert reply["usage"] == {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    assert [one["index"] for one in reply["data"]] == [0, 1]
    assert all(one.keys() == {"index", "object", "score"} for one in reply["data"])
    for first, second in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        body = {first: BODY["text_1"], second: BODY["text_2"]}
        assert (await client.post("/v1/score", json=body)).json()["data"] == reply["data"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "2 texts and 1: one with many"),
        ({"text_1": "a", "text_2": []}, "1 texts and 0"),
        ({"text_1": [], "text_2": []}, "0 texts and 0"),
        ({"text_1": "a"}, "text_1 and text_2 are needed"),
        ({"text_1": "a", "documents": "b"}, "text_1 and text_2 are needed"),
        ({"text_1": "a", "text_2": [1]}, "text_2"),
        ({"text_1": "a", "text_2": "word " * 600}, "text_2[0] has 602 tokens; at most"),
        (BODY | {"truncate_prompt_tokens": 513}, "truncate_prompt_tokens: 513 is not in 1 … 512"),
        (BODY | {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        (BODY | {"truncate_prompt_tokens": 2}, "2 tokens leave no room"),
    ],
)
async def test_refusals(client: Client, body: dict[str, Any], says: str) -> None:
    refused = await client.post("/score", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "BadRequestError"
    assert says in refused.json()["error"]["message"]


async def test_several_labels_score_nothing(artifact: Artifact) -> None:
    async with serving_task(artifact, LABELS) as client:
        refused = await client.post("/v1/score", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, 400)
        assert "3 labels and is not a reranker" in refused.json()["error"]["message"]


async def test_the_first_model_that_scores_answers(artifact: Artifact) -> None:
    artifacts = [variant(artifact, "labels", 8, LABELS), variant(artifact, "vectors", 8)]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        answer = await client.post("/score", json=BODY)
        assert (answer.status_code, answer.json()["model"]) == (200, "vectors")
        unknown = await client.post("/score", json=BODY | {"model": "c"})
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "NotFoundError")


async def test_a_reply_is_bounded_before_anything_is_computed(artifact: Artifact) -> None:
    body = BODY | {"text_2": ["a", "b c", "d"]}
    for limit, status in ((3 * SCORE_BYTES, 200), (3 * SCORE_BYTES - 1, 413)):
        async with serving_task(artifact, RANKS, max_response_bytes=limit) as client:
            assert (await client.post("/score", json=body)).status_code == status


async def test_each_side_may_be_as_long_as_a_request(artifact: Artifact) -> None:
    for task in (None, RANKS):
        async with serving_task(artifact, task, max_client_batch_size=2) as client:
            assert (await client.post("/score", json=BODY)).status_code == 200
            refused = await client.post("/score", json=BODY | {"text_2": ["a"] * 3})
            assert refused.status_code == 400
