"""A new artifact: built beside its place, verified, and put there in one step. Without torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from model.artifact.manifest import (
    Artifact,
    load_artifact,
    write_manifest,
)
from model.artifact.verification import VerificationRecord
from model.errors import ArtifactError

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """A new artifact and the result of its verification."""

    artifact: Artifact
    verification: VerificationRecord


def place(
    out: Path,
    build: Callable[[Path], None],
    verify: Callable[[Artifact], VerificationRecord],
) -> Exported:
    """Build an artifact in a folder beside `out`, verify it, and move it there in one step.

    An artifact that fails its verification is moved too, with that result in its manifest.

    Args:
        out: a folder that does not exist yet, or is empty.
        build: writes all files to a folder, and a manifest without a verification.
        verify: the result of the verification.

    Raises:
        ArtifactError: `out` is taken, before or at the end.
        ModelError: as `build` or `verify`.

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
    """Check that a folder for an artifact does not exist, or is empty.

    Raises:
        ArtifactError: it is taken.

    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArtifactError(f"{out} exists and is not an empty folder")


def move(artifact: Artifact, out: Path) -> Artifact:
    """The artifact at a folder on the same file system, where it was moved in one step.

    Raises:
        ArtifactError: somebody took the folder meanwhile.

    """
    try:
        artifact.folder.rename(out)  # over an empty folder, but never over another's export
    except OSError:
        raise ArtifactError(f"{out} was taken while this export ran") from None
    return replace(artifact, folder=out)
