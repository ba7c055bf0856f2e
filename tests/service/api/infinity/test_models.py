"""`GET /models` in Infinity's form."""

from __future__ import annotations

import time

import pytest

from model.artifact.manifest import Artifact
from model.numerics.task_head import TaskConfig
from service.api.infinity.models import capabilities
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, TOKENS
from tests.service.harness import serving
from tests.service.several import fake_of, variant


@pytest.mark.anyio
async def test_the_list_has_infinitys_form(artifact: Artifact) -> None:
    artifacts = [variant(artifact, "a", 8), variant(artifact, "b", 8)]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        reply = (await client.get("/models")).json()
    assert reply.keys() == {"data", "object"}
    assert [one["id"] for one in reply["data"]] == ["a", "b"]
    for one in reply["data"]:
        assert one.keys() == {
            "id",
            "stats",
            "object",
            "owned_by",
            "created",
            "backend",
            "capabilities",
        }
        assert (one["object"], one["owned_by"], one["backend"]) == ("model", "infinity", "fake")
        assert one["stats"] == {"queue_fraction": 0, "queue_absolute": 0}
        assert 0 < time.time() - one["created"] < 10 * 365 * 24 * 3600
        assert one["capabilities"] == ["embed"]


@pytest.mark.parametrize(
    ("task", "able"),
    [
        (None, ["embed"]),
        (RANKS, ["rerank", "classify"]),
        (LABELS, ["classify"]),
        (TOKENS, []),
        (SPARSE, []),
        (TaskConfig(kind="late_interaction", outputs=6, pooling="none"), ["rerank"]),
    ],
)
def test_capabilities_are_the_routes_that_answer(task: TaskConfig | None, able: list[str]) -> None:
    assert capabilities(task) == able
