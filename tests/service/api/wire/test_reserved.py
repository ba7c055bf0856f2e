"""Replies within their limits, whose bytes are held until they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import Request

from model.artifact.manifest import Artifact
from service.api.tei.rerank import RANK_BYTES
from service.api.wire.reserved import reserve
from service.inference.timings import Timings
from service.telemetry.http_metrics import FRAME_BYTES
from tests.service.api.tei.tasks import LABELS, RANKS, ScoringEngine, serving_task
from tests.service.harness import request_context, reserved_replies, serving, state_of
from tests.service.scraped import samples

pytestmark = pytest.mark.anyio


async def test_a_reply_has_its_limit_and_gives_its_bytes_back(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that would be too large is refused before anything is computed."""
    async with serving_task(artifact, RANKS, max_response_bytes=1024) as client:
        sizes = reserved_replies(client.app, monkeypatch)
        engine = state_of(client.app).models.default.inference.engines.default.engine
        body = {"query": "a", "texts": ["x" * 20] * 15}
        fits = await client.post("/rerank", json=body)
        refused = await client.post("/rerank", json=body | {"return_text": True})
        assert isinstance(engine, ScoringEngine)
        assert engine.scored == 15
        assert len(sizes) == 1
        assert state_of(client.app).replies.held == 0
    assert (fits.status_code, refused.status_code) == (200, 413)
    assert "send fewer texts" in refused.json()["error"]


async def test_a_reply_holds_its_bytes_until_it_is_sent(artifact: Artifact) -> None:
    held_while_sent = []

    async def send(_: Any) -> None:
        held_while_sent.append(replies.held)

    async with serving_task(artifact, RANKS) as client:
        replies = state_of(client.app).replies
        scope: Any = {"type": "http", "app": client.app, "context": request_context()}
        with reserve(Request(scope), 1000) as reply:
            assert replies.held == 1000
            response = await reply.json(lambda: [1], Timings(0, 0.0, 0.0))
        await response(scope, client.get, send)
        assert replies.held == 0
    assert held_while_sent == [1000, 1000]


@pytest.mark.parametrize("fails", ["the engine", "the writer"])
async def test_what_fails_gives_its_bytes_back(
    artifact: Artifact, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    async with serving_task(artifact, LABELS) as client:
        if fails == "the engine":
            monkeypatch.setattr(ScoringEngine, "expected", fail)
        else:
            monkeypatch.setattr("service.api.tei.predict.predictions", fail)
        response = await client.post("/predict", json={"inputs": "a"})
        replies = state_of(client.app).replies
        assert (replies.held, replies.returned > 0) == (0, True)
    assert response.status_code == 500


PAIRS = [["a b c", "a b c"]] * 20


@pytest.mark.parametrize(
    ("path", "body", "predicted"),
    [
        ("/explain", {"inputs": PAIRS}, range(1, 2**20)),
        ("/rerank", {"query": "a b", "texts": ["a b c"] * 20}, [20 * RANK_BYTES]),
    ],
)
async def test_the_reply_of_a_late_interaction_model_is_predicted(
    late_artifact: Artifact, path: str, body: dict[str, Any], predicted: Sequence[int]
) -> None:
    """The bytes of token vectors, which the computation needs, are not predicted of the reply."""
    async with serving(late_artifact) as client:
        reply = await client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        found = await samples(client)
    label = (("route", path),)
    assert found["headscope_reply_prediction_ratio_count", label] == 1
    ratio = found["headscope_reply_prediction_ratio_sum", label]
    assert round(len(reply.content) / ratio) - FRAME_BYTES in predicted
