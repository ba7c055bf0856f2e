"""The paths of probes and scrapers are routes that answer."""

from __future__ import annotations

import httpx

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.telemetry.requests import METRICS_PATH, PROBE_PATHS
from tests.service.harness import listening


def test_each_answers_get_and_head(artifact: Artifact) -> None:
    """Over a real connection: a reply to HEAD has the same head and no body."""
    with (
        listening(artifact, FakeEngine(artifact.manifest.config)) as (_, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for path in sorted(PROBE_PATHS):
            got, head = client.get(path), client.head(path)
            assert (got.status_code, head.status_code) == (200, 200)
            assert head.content == b""
            assert head.headers.get("content-type") == got.headers.get("content-type")
        assert client.get(METRICS_PATH).status_code == 200
        assert client.head(METRICS_PATH).status_code == 405
