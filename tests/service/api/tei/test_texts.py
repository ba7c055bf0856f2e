"""What TEI's requests share: unknown fields, and the limit on replies."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from service.api.native.texts import MAX_FIELDS
from tests.service.api.tei.tasks import RANKS, serving_task
from tests.service.harness import state_of

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


async def test_a_reply_has_its_limit_and_gives_its_bytes_back(artifact: Artifact) -> None:
    async with serving_task(artifact, RANKS, max_response_bytes=1024) as client:
        replies = state_of(client.app).replies
        body = {"query": "a", "texts": ["x" * 20] * 15}
        fits = await client.post("/rerank", json=body)
        refused = await client.post("/rerank", json=body | {"return_text": True})
        assert (replies.held, replies.returned > 0) == (0, True)
    assert (fits.status_code, refused.status_code) == (200, 413)
    assert "send fewer texts" in refused.json()["error"]
