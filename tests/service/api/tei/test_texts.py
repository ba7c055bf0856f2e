"""Unknown fields in TEI's requests."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from service.api.native.texts import MAX_FIELDS
from tests.service.api.tei.tasks import RANKS, serving_task

pytestmark = pytest.mark.anyio
BODY = {"query": "a", "texts": ["b", "c"]}


async def test_unknown_fields_are_ignored_up_to_a_number(artifact: Artifact) -> None:
    async with serving_task(artifact, RANKS) as client:
        known = await client.post("/rerank", json=BODY)
        more = await client.post("/rerank", json=BODY | {"user": "somebody"})
        many = {f"field {n}": n for n in range(MAX_FIELDS + 1)}
        refused = await client.post("/rerank", json=BODY | many)
    assert known.json() == more.json()
    assert refused.status_code == 422
    assert "too many fields" in refused.json()["error"]
