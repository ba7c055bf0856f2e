"""Messages between the supervisor and a worker."""

from __future__ import annotations

from pathlib import Path

from model.artifact.manifest import Artifact
from service.process.channel import MESSAGE_BYTES, Assignment
from service.settings import Settings


def test_an_assignment_arrives_as_it_was(artifact: Artifact, tmp_path: Path) -> None:
    settings = Settings(workers=3, threads=2, max_length=7, host="::1", cache_folder=tmp_path)
    assignment = Assignment(
        settings=settings,
        artifacts=[(artifact.folder, artifact.sha256)] * 2,
        folder=tmp_path,
        index=2,
        restarted=True,
    )
    message = assignment.model_dump_json().encode()
    assert len(message) < MESSAGE_BYTES
    assert Assignment.model_validate_json(message) == assignment
