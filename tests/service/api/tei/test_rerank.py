"""`POST /rerank` in TEI's form: sorted downwards, sigmoid or raw, and refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sentence_transformers import MultiVectorEncoder

from model.artifact.manifest import Artifact
from tests.model.late_checkpoints import DOCUMENTS
from tests.model.late_checkpoints import QUERY as LATE_QUERY
from tests.service.api.tei.tasks import LABELS, RANKS, scores_of, serving_task
from tests.service.harness import Client, serving

pytestmark = pytest.mark.anyio
QUERY, TEXTS = "what is it", ["it is a cat", "", 'a "dog"\n', "nothing", "what is it"]
LATE = LATE_QUERY, DOCUMENTS


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
        empty = await client.post("/rerank", json={"query": "", "texts": ["a", ""]})
    for one, says in ((response, "texts: empty"), (empty, "texts[1] is empty")):
        assert (one.status_code, one.json()["error_type"]) == (400, "Empty")
        assert says in one.json()["error"]


@pytest.mark.parametrize("body", [{"query": "a"}, {"query": "a", "texts": "b"}, {"texts": ["a"]}])
async def test_other_bodies_are_refused(artifact: Artifact, body: dict[str, Any]) -> None:
    async with serving_task(artifact, RANKS) as client:
        response = await client.post("/rerank", json=body)
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")


@pytest.fixture(scope="module")
async def late(late_artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Return a late-interaction model, whose engine has passed the golden texts."""
    async with serving(late_artifact, allow_unverified=False) as client:
        yield client


@pytest.mark.parametrize("truncate", [False, True])
async def test_max_sim_is_sentence_transformers(
    late: Client, late_checkpoint: Path, truncate: bool
) -> None:
    """A text's score does not depend on its batch or on `raw_scores`."""
    query, texts = ("the cat a b c " * 3, [*DOCUMENTS, "x y z " * 9]) if truncate else LATE
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    vectors = reference.encode_query([query]), reference.encode_document(texts)
    scores = reference.similarity(*vectors)[0].numpy()
    body = {"query": query, "texts": texts, "truncate": truncate, "return_text": True}
    found = (await late.post("/rerank", json=body)).json()
    assert [one["index"] for one in found] == np.argsort(-scores).tolist()
    for one in found:
        assert one["score"] == pytest.approx(float(scores[one["index"]]), abs=1e-4)
        assert one["text"] == texts[one["index"]]
    assert (await late.post("/rerank", json=body | {"raw_scores": True})).json() == found
    alone = await late.post("/rerank", json=body | {"texts": texts[:1]})
    assert alone.json()[0]["score"] == pytest.approx(float(scores[0]), abs=1e-4)
    assert int(alone.headers["x-compute-tokens"]) > 9


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"query": "a " * 7, "texts": ["b"]}, 422, "the query has 10 tokens; at most 9 fit"),
        ({"query": "a", "texts": ["b", "a " * 16]}, 422, "texts[1] has 19 tokens; at most 18 fit"),
        ({"query": "a", "texts": []}, 400, "texts: empty"),
    ],
)
async def test_what_does_not_fit_a_late_interaction_model(
    late: Client, body: dict[str, Any], status: int, says: str
) -> None:
    response = await late.post("/rerank", json=body | {"truncate": False})
    assert response.status_code == status
    assert says in response.json()["error"]


async def test_token_vectors_count_as_bytes_of_a_reply(late_artifact: Artifact) -> None:
    """A query of nine tokens and a document of four count, with six numbers a token."""
    body = {"query": "a", "texts": ["b"]}
    for limit, status in ((4 * 6 * 13, 200), (4 * 6 * 13 - 1, 413)):
        async with serving(late_artifact, max_response_bytes=limit) as client:
            assert (await client.post("/rerank", json=body)).status_code == status


async def test_a_late_interaction_model_has_no_labels(late: Client) -> None:
    response = await late.post("/predict", json={"inputs": "a"})
    assert response.status_code == 424
    assert "late has a task head for token vectors" in response.json()["error"]
