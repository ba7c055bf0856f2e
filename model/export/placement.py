"""A new artifact: built beside its place, verified, and put there in one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from model.artifact.manifest import (
    Artifact,
    VerificationRecord,
    load_artifact,
    write_manifest,
)
from model.export import placing
from model.export.verify import verify
from model.runtimes.contract import Device

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """A new artifact and the result of its verification."""

    artifact: Artifact
    verification: VerificationRecord


def place(out: Path, device: Device, progress: Progress, build: Callable[[Path], None]) -> Exported:
    """Build an artifact in a folder beside `out`, verify it, and move it there in one step.

    An artifact that fails its verification is moved too, with that result in its manifest.

    Args:
        out: a folder that does not exist yet, or is empty.
        device: where it is verified.
        progress: called with a line at each step.
        build: writes all files to a folder.

    Raises:
        ModelError: as `build` or the verification; or `out` is taken.

    """
    with placing.placing(out) as folder:
        build(folder)
        progress("verifying ONNX against PyTorch")
        record = _verify(folder, device)
        progress("verified" if record.passed else f"verification FAILED: {record.failed}")
        artifact = load_artifact(folder)
    return Exported(replace(artifact, folder=out), record)


def move(artifact: Artifact, out: Path) -> Artifact:
    """The artifact at a folder on the same file system, where it was moved in one step.

    Raises:
        ArtifactError: somebody took the folder meanwhile.

    """
    placing.move(artifact.folder, out)
    return replace(artifact, folder=out)


def _verify(folder: Path, device: Device) -> VerificationRecord:
    """Verify an artifact and record the result in its manifest."""
    artifact = load_artifact(folder)
    record = verify(artifact, device).record()
    write_manifest(folder, artifact.manifest.model_copy(update={"verification": record}))
    return record
