"""`POST /` by the model's kind, as TEI serves it."""

from __future__ import annotations

from typing import Any

import pytest

from model.artifact.manifest import Artifact
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, TOKENS, serving_task
from tests.service.harness import assert_problem

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("task", "path", "body"),
    [
        (None, "/embed", {"inputs": "a cat", "dimensions": 3}),
        (SPARSE, "/embed_sparse", {"inputs": "a cat"}),
        (LABELS, "/predict", {"inputs": ["a cat", "a dog"], "raw_scores": True}),
        (TOKENS, "/predict", {"inputs": "a cat", "aggregation": "none"}),
        (RANKS, "/rerank", {"query": "a", "texts": ["b", "c"], "return_text": True}),
    ],
)
async def test_it_is_the_route_of_the_kind(
    artifact: Artifact, task: Any, path: str, body: dict[str, Any]
) -> None:
    async with serving_task(artifact, task) as client:
        expected = await client.post(path, json=body)
        found = await client.post("/", json=body)
        assert (found.status_code, found.json()) == (200, expected.json())
        wrong = await client.post("/", json={"inputs": {}})
        assert wrong.json() == (await client.post(path, json={"inputs": {}})).json()
        assert wrong.status_code == 422
        assert (await client.get("/")).headers["content-type"].startswith("text/html")


async def test_the_dashboard_has_its_own_errors(artifact: Artifact) -> None:
    """A browser without a key gets the page; other requests get a message."""
    async with serving_task(artifact, None, api_keys="k") as client:
        assert (await client.get("/")).headers["content-type"].startswith("text/html")
        assert_problem(await client.post("/", json={"inputs": "a"}), 401, "Bearer")
        wrong = await client.post("/", json={}, auth=("", "k"))
        assert wrong.json().keys() == {"error", "error_type"}
