"""Live texts computed by two versions before a swap."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.inference.tokenization.inputs import Picture
from service.inference.tokenization.tokenizer import Options
from service.models.shadow import Shadow
from service.models.state import state_of
from service.scheduler.submission import Caller
from tests.service.harness import until
from tests.service.pictures import element, picture
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


async def test_pictures_are_compared_by_the_vision_towers(
    tmp_path: Path, exported: Callable[..., Artifact], clip_checkpoint: Path
) -> None:
    """Both towers are loaded, swapped and released as one model."""
    towers = exported(clip_checkpoint, "clip")
    for version in "12":
        add(tmp_path, f"a/{version}", towers)
    async with serving_repository(tmp_path) as client:
        await client.put("/models/a", json={"version": "1"}, headers=ADMIN)
        body = {"version": "2", "shadow_share": 1, "shadow_texts": 4}
        swap = asyncio.create_task(client.put("/models/a", json=body, headers=ADMIN))
        asked = {"inputs": [element(picture()), "a text"], "model": "a"}
        while not swap.done():
            assert (await client.post("/encode", json=asked)).status_code == 200
        report = (await swap).json()["loaded"]["shadow"]
        assert (report["texts"], report["failed"]) == (4, 0)
        assert report["min_cosine"] == pytest.approx(1)
        assert (await client.delete("/models/a", headers=ADMIN)).status_code == 200
        await until(lambda: not state_of(client.app).control.loader.in_memory)


def test_large_pictures_are_not_kept_for_a_comparison() -> None:
    shadow, caller = Shadow(1.0, 1, 1.0), Caller("a", math.inf)
    for size in (2**20, 2**20 + 1):
        shadow.sample(Picture(bytes(size)), Options(), caller)
    assert shadow._waiting.qsize() == 1
