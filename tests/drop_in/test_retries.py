"""Real clients wait as long as `retry-after` says, and then get their vectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.errors import Overloaded
from tests.service.harness import listening, state_of

SECONDS = 1


def test_openais_client_honours_retry_after(
    exported: Callable[..., Artifact], small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openai import OpenAI  # a second, which no other file of tests needs

    artifact = exported(small_checkpoint, "small")
    with listening(artifact, FakeEngine(artifact.manifest.config)) as (app, port):
        inference = state_of(app).models.default.inference
        prepare, asked = inference.prepare, []

        async def once_full(*args: Any, **options: Any) -> Any:
            asked.append(time.monotonic())
            if len(asked) == 1:
                raise Overloaded("the queue is full", retry_after_seconds=SECONDS)
            return await prepare(*args, **options)

        monkeypatch.setattr(inference, "prepare", once_full)
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            (found,) = client.embeddings.create(model="any", input="a").data
    first, second = asked
    assert second - first >= SECONDS
    assert np.linalg.norm(found.embedding) == pytest.approx(1, abs=1e-5)
