"""A worker, as its supervisor starts it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import httpx
import psutil
import pytest

from model.artifact.manifest import Artifact, load_artifact, write_manifest
from tests.service.process.launched import launched


@pytest.mark.slow
def test_another_artifact_does_not_slip_in(artifact: Artifact, tmp_path: Path) -> None:
    """It is valid, but the other workers answer from the one before; they go on."""
    copy = Path(shutil.copytree(artifact.folder, tmp_path / "copy"))
    with launched(copy) as (process, url):
        write_manifest(copy, artifact.manifest.model_copy(update={"model": "another"}))
        assert load_artifact(copy).sha256 != artifact.sha256
        psutil.Process(process.pid).children()[0].kill()
        time.sleep(4)
        for _ in range(4):
            assert httpx.get(f"{url}/info").json()["artifact_sha256"] == artifact.sha256
        assert httpx.get(f"{url}/health/ready").status_code == 200
        assert "headscope_workers 1.0" in httpx.get(f"{url}/metrics").text
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"{copy} is not the artifact that the service started with" in err
