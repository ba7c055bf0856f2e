"""Worker, as its supervisor starts it."""

from __future__ import annotations

import shutil
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
