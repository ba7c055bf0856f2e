"""`POST /rerank` in TEI's form: sorted downwards, sigmoid or raw, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from model.artifact.manifest import Artifact
from service.api.tei.rerank import ranks
from tests.service.api.tei.tasks import LABELS, RANKS, scores_of, serving_task

pytestmark = pytest.mark.anyio
QUERY, TEXTS = "what is it", ["it is a cat", "", 'a "dog"\n', "nothing", "what is it"]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("text", [False, True])
async def test_texts_are_ranked_downwards(artifact: Artifact, raw: bool, text: bool) -> None:
    rows = scores_of(artifact, RANKS, [(QUERY, one) for one in TEXTS])
    logits = np.concatenate(rows)
    scores = logits if raw else expit(logits)
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": raw, "return_text": text}
    async with serving_task(artifact, RANKS) as client:
        response = await client.post("/rerank", json=body)
    found = response.json()
    assert [one["index"] for one in found] == np.argsort(-logits).tolist()
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    for one in found:
        assert one["score"] == pytest.approx(float(scores[one["index"]]), abs=1e-6)
        assert one.get("text") == (TEXTS[one["index"]] if text else None)
        assert ("text" in one) == text


def test_equal_scores_keep_their_order_and_small_ones_theirs() -> None:
    """A sigmoid of −40 and of −50 differ; of equal texts the first comes first."""
    logits = [np.array([x], np.float32) for x in (-50.0, -40.0, -50.0, 3.0)]
    found = ranks(logits, None, raw=False)
    assert [one["index"] for one in found] == [3, 1, 0, 2]
    assert found[1]["score"] == pytest.approx(float(expit(-40.0)), rel=1e-6)
    assert found[2]["score"] == pytest.approx(float(expit(-50.0)), rel=1e-6)


@pytest.mark.parametrize(
    ("task", "says"),
    [(None, "small has no task head: serve a cross-encoder"), (LABELS, "3 labels")],
)
async def test_a_model_that_ranks_nothing_is_a_424(
    artifact: Artifact, task: Any, says: str
) -> None:
    async with serving_task(artifact, task) as client:
        response = await client.post("/rerank", json={"query": "a", "texts": ["b"]})
    assert response.status_code == 424
    assert says in response.json()["error"]
    assert response.json()["error_type"] == "Backend"


async def test_no_texts_are_teis_400(artifact: Artifact) -> None:
    async with serving_task(artifact, RANKS) as client:
        response = await client.post("/rerank", json={"query": "a", "texts": []})
    assert response.status_code == 400
    assert response.json() == {"error": "`texts` is empty", "error_type": "Empty"}


@pytest.mark.parametrize("body", [{"query": "a"}, {"query": "a", "texts": "b"}, {"texts": ["a"]}])
async def test_other_bodies_are_refused(artifact: Artifact, body: dict[str, Any]) -> None:
    async with serving_task(artifact, RANKS) as client:
        response = await client.post("/rerank", json=body)
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
