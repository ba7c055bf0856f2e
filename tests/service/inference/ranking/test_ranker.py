"""Deadlines of explained rankings, and their work."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Task, TextTask
from tests.service.api.tei.tasks import RANKS
from tests.service.harness import AnsweringEngine, assert_problem, serving
from tests.service.inference.ranking.oracle import DOCUMENTS, ranked

pytestmark = pytest.mark.anyio


def cross_encoder(artifact: Artifact) -> Artifact:
    """Return the artifact with the task head of a cross-encoder."""
    manifest = artifact.manifest.model_copy(update={"task": RANKS})
    return Artifact(artifact.folder, manifest, artifact.sha256)


@pytest.mark.parametrize("explain", ["tokens", "contrast"])
async def test_what_is_computed_by_the_deadline_is_the_answer(
    artifact: Artifact, explain: str
) -> None:
    """The engine hangs after about five occluded parts, until the reply arrives."""
    replied, occluded = threading.Event(), []

    def answer(tasks: Sequence[Task]) -> None:
        occluded.extend(task for task in tasks if isinstance(task, TextTask) and task.unseen)
        if len(occluded) > 5:
            assert replied.wait(30)

    engine = AnsweringEngine(answer, artifact.manifest.config)
    async with serving(cross_encoder(artifact), engine, max_batch_tokens=12) as client:
        body = {"query": "a", "documents": DOCUMENTS, "explain": explain}
        headers = {"x-request-timeout-ms": "2000"}
        answered = await client.post("/rank", json=body, headers=headers)
        replied.set()
    reply = answered.json()
    scores = [result["score"] for result in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == len(DOCUMENTS)
    if explain == "tokens":
        partial = [result for result in reply["results"] if result["partial"]]
        assert partial
        for result in reply["results"]:
            known = [share for share in result["shares"] if share is not None]
            assert len(known) == result["computed"]
            assert (result["completeness_error"] is None) == result["partial"]
        computed = sum(result["computed"] for result in reply["results"])
    else:
        contrast = reply["contrast"]
        assert contrast["partial"]
        assert contrast["completeness_error"] is None
        known = [
            row["shares"][side]
            for row in contrast["words"]
            for side in (0, 1)
            if row["spans"][side] and row["shares"][side] is not None
        ]
        computed = sum(contrast["computed"])
        assert len(known) == computed
        assert all(row["rank"] for side in contrast["without"] for row in side)
    assert 3 <= computed <= len(occluded)


async def test_what_no_idle_service_could_do_is_refused_for_good(artifact: Artifact) -> None:
    engine = AnsweringEngine(lambda _: None, artifact.manifest.config)
    engine.measured = [(1, 0.2), (512, 102.4)]
    body = {"query": "a", "documents": ["the cat " * 20] * 2}
    refused = [("tokens", "or a smaller `top_n`"), ("contrast", "shorter documents")]
    async with serving(cross_encoder(artifact), engine, max_batch_tokens=512) as client:
        for explain, says in refused:
            answer = await client.post("/rank", json=body | {"explain": explain})
            assert says in assert_problem(answer, 422, "--request-timeout-seconds")["detail"]


async def test_equal_scores_keep_the_order_of_the_request(artifact: Artifact) -> None:
    async with serving(artifact) as client:
        same = ["a cat"] * 3
        reply = await ranked(client, "x", documents=same, explain="contrast", compare=[2, 0])
    assert [result["index"] for result in reply["results"]] == [0, 1, 2]
    assert reply["contrast"]["ranks"] == [3, 1]
    assert reply["contrast"]["difference"] == 0
