"""Placement of a new artifact: built in a folder beside it, verified, and moved. Without torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from model.artifact.manifest import Artifact, load_artifact, write_manifest
from model.artifact.verification import VerificationRecord
from model.errors import ArtifactError

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """New artifact, and the result of its verification."""

    artifact: Artifact
    verification: VerificationRecord


def place(
    out: Path,
    build: Callable[[Path], None],
    verify: Callable[[Artifact], VerificationRecord],
) -> Exported:
    """Build an artifact in a folder beside `out`, verify it, and move it there in one step.

    An artifact that fails its verification is moved too, with the result in its manifest. `build`
    writes all files to a folder, and a manifest without a verification.
    """
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = Path(scratch) / "artifact"
        folder.mkdir()
        build(folder)
        artifact = load_artifact(folder)
        record = verify(artifact)
        write_manifest(folder, artifact.manifest.model_copy(update={"verification": record}))
        return Exported(move(load_artifact(folder), out), record)


def check_free(out: Path) -> None:
    """Check that a folder for an artifact does not exist, or is empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArtifactError(f"{out} exists and is not an empty folder")


def move(artifact: Artifact, out: Path) -> Artifact:
    """Move an artifact to a folder on the same file system in one step; return it there."""
    try:
        artifact.folder.rename(out)  # replaces an empty folder, but never another export
    except OSError:
        raise ArtifactError(f"{out} was taken while this export ran") from None
    return artifact.at(out)
