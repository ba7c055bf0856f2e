"""A replica's application, called as a foreign ASGI server calls it, without Ray."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from deploy.ray import replica
from model.artifact.manifest import Artifact
from service.app import create_app
from service.engines.fake import FakeEngine
from service.models.state import state_of


def test_no_worker_processes_and_any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve listens and scales; listening on a loopback address would refuse its clients' hosts."""
    monkeypatch.setenv("HEADSCOPE_HOST", "127.0.0.1")
    monkeypatch.setenv("HEADSCOPE_MAX_LENGTH", "7")
    settings = replica.replica_settings(engine="fake")
    assert (settings.host, settings.max_length, settings.engine) == ("0.0.0.0", 7, "fake")
    monkeypatch.setenv("HEADSCOPE_WORKERS", "2")
    with pytest.raises(ValueError, match="num_replicas"):
        replica.replica_settings()
    monkeypatch.setenv("HEADSCOPE_METRICS_PORT", "9464")
    with pytest.raises(ValueError, match="HEADSCOPE_METRICS_PORT does not apply"):
        replica.replica_settings()


@pytest.mark.anyio
async def test_refusals_pass_and_the_id_is_left_to_the_proxy(artifact: Artifact) -> None:
    """A full queue gives the service's own reply, with `Retry-After`; Serve checks readiness."""
    settings = replica.replica_settings(engine="fake", max_queue_texts=2)
    engine = FakeEngine(artifact.manifest.config, batch_seconds=0.2)
    app = replica.served_application(create_app(settings, [artifact], [engine]))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://service.example") as client,
    ):
        await replica.check(app)
        body = {"inputs": ["water"]}
        replies = await asyncio.gather(*(client.post("/encode", json=body) for _ in range(3)))
        refused = [reply for reply in replies if reply.status_code == 429]
        assert refused
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
        assert not any("x-request-id" in reply.headers for reply in replies)
        assert all("x-total-time" in reply.headers for reply in replies)
        state_of(app).readiness.draining = True
        with pytest.raises(replica.Unready, match="stopping"):
            await replica.check(app)
