"""Prompts of both sides, and models that rank no texts."""

from __future__ import annotations

from typing import Any

import pytest

from model.artifact.manifest import Artifact
from tests.service.api.tei.tasks import LABELS, RANKS, TOKENS, serving_task
from tests.service.harness import assert_problem, serving
from tests.service.inference.ranking.oracle import ranked
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio
BODY: dict[str, Any] = {"query": "a", "documents": ["b", "c"]}


@pytest.mark.parametrize("task", [LABELS, TOKENS], ids=["labels", "tokens"])
async def test_classifiers_rank_nothing(artifact: Artifact, task: Any) -> None:
    async with serving_task(artifact, task) as client:
        answer = await client.post("/rank", json=BODY)
        assert_problem(answer, 424, "is a classifier with 3 labels", "Backend")


async def test_each_side_has_its_prompt(artifact: Artifact) -> None:
    """By default the checkpoint's prompts for queries and documents; "" is none."""
    prompts = {"query": "find: ", "passage": "read: ", "other": "x: "}
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": prompts})
    manifest = artifact.manifest.model_copy(update={"sentence": sentence})
    prompted = Artifact(artifact.folder, manifest, artifact.sha256)
    async with serving(artifact, fake_of(artifact)) as client:
        by_hand = await ranked(client, "find: a", documents=["read: b", "read: c"])
        other = await ranked(client, "x: a", documents=["b", "c"])
    async with serving(prompted, fake_of(artifact)) as client:
        own = await ranked(client, "a", documents=["b", "c"])
        names = {"query_prompt_name": "other", "document_prompt_name": ""}
        named = await ranked(client, "a", documents=["b", "c"], **names)
        answer = await client.post("/rank", json=BODY | {"query_prompt_name": "unknown"})
        assert_problem(answer, 422, "unknown prompt_name")
    assert own["results"] == by_hand["results"]
    assert own["prompts"] == {
        "query": {"name": "query", "text": "find: "},
        "document": {"name": "passage", "text": "read: "},
    }
    assert named["prompts"] == {"query": {"name": "other", "text": "x: "}, "document": None}
    assert named["results"] == other["results"]


async def test_a_cross_encoder_has_no_prompt_of_documents(artifact: Artifact) -> None:
    async with serving_task(artifact, RANKS) as client:
        answer = await client.post("/rank", json=BODY | {"document_prompt_name": "a"})
        assert_problem(answer, 422, "document_prompt_name is not for this model")
