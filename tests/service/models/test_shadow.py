"""Live texts computed by two versions before a swap."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from tests.service.repositories import ADMIN, add, serving_repository

pytestmark = pytest.mark.anyio


async def test_a_shadow_comparison_reports_the_cosine_on_live_texts(
    tmp_path: Path, tiny_artifact: Artifact
) -> None:
    for version in "12":
        add(tmp_path, f"a/{version}", tiny_artifact)
    async with serving_repository(tmp_path) as client:
        await client.put("/models/a", json={"version": "1"}, headers=ADMIN)
        body = {"version": "2", "shadow_share": 1, "shadow_texts": 5}
        swap = asyncio.create_task(client.put("/models/a", json=body, headers=ADMIN))
        number = 0
        while not swap.done():
            number += 1
            reply = await client.post("/encode", json={"inputs": f"text {number}", "model": "a"})
            assert reply.status_code == 200
        report = (await swap).json()["loaded"]["shadow"]
        assert (report["texts"], report["failed"]) == (5, 0)
        assert report["min_cosine"] == pytest.approx(1)  # both are the same weights
