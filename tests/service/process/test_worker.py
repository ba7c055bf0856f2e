"""Worker, as its supervisor starts it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import httpx
import pytest

from model.artifact.manifest import Artifact, load_artifact, write_manifest
from tests.service.process.launched import launched


@pytest.mark.slow
def test_another_artifact_does_not_slip_in(artifact: Artifact, tmp_path: Path) -> None:
    """The artifact is valid, but the other workers continue with the previous one."""
    copy = Path(shutil.copytree(artifact.folder, tmp_path / "copy"))
    with launched(copy) as service:
        write_manifest(copy, artifact.manifest.model_copy(update={"model": "another"}))
        assert load_artifact(copy).sha256 != artifact.sha256
        service.children[0].kill()
        service.wait_until(
            lambda: f"{copy} is not the artifact that the service started with" in service.log
        )
        for _ in range(4):
            info = httpx.get(f"{service.url}/info").json()
            assert info["artifact_sha256"] == artifact.sha256
        assert service.ready()
        assert "headscope_workers 1.0" in httpx.get(f"{service.url}/metrics").text
        assert service.stop() == 0


@pytest.mark.slow
def test_what_a_worker_noted_outlives_it(artifact: Artifact) -> None:
    """Its requests are counted within a tenth of a second, even if nobody reads the metrics."""
    with launched(artifact.folder) as service:
        for _ in range(20):
            assert httpx.post(f"{service.url}/attention", json={"inputs": "a"}).status_code == 200
        time.sleep(0.3)
        for worker in service.children:
            worker.kill()
        service.wait_until(service.ready)
        metrics = httpx.get(f"{service.url}/metrics").text
        assert 'headscope_requests_total{route="/attention",status="200"} 20.0' in metrics
        assert 'headscope_request_seconds_count{route="/attention"} 20.0' in metrics
        assert service.stop() == 0
