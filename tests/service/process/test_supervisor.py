"""The supervisor of workers that cannot start any more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model.artifact.manifest import ENCODER_DATA, Artifact
from tests.service.process.launched import launched


@pytest.mark.slow
def test_the_service_ends_when_no_worker_starts_any_more(
    artifact: Artifact, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(artifact.folder, tmp_path / "copy"))
    with launched(copy, most_pause_seconds=0.05) as service:
        (copy / ENCODER_DATA).write_bytes(b"damaged")
        for worker in service.children:
            worker.kill()
        assert service.process.wait(120) == 1
        *lines, last = service.log.splitlines()
    assert last.startswith(f"headscope serve: no worker starts any more: {copy / ENCODER_DATA} has")
    restarts = [line for line in lines if "it is started again in" in line]
    assert len(restarts) == 2 + 4
    assert sum("ended by signal 9" in line for line in restarts) == 2
