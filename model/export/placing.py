"""The place of a new artifact: written beside it, and put there whole."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from model.errors import ArtifactError


@contextlib.contextmanager
def placing(out: Path) -> Iterator[Path]:
    """Context of writing into an empty folder, which becomes `out` at the end.

    Args:
        out: a folder that does not exist yet, or is empty.

    Raises:
        ArtifactError: `out` is taken, before or at the end.

    """
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        folder = Path(scratch) / "artifact"
        folder.mkdir()
        yield folder
        move(folder, out)


def check_free(out: Path) -> None:
    """Check that a folder for an artifact does not exist, or is empty.

    Raises:
        ArtifactError: it is taken.

    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArtifactError(f"{out} exists and is not an empty folder")


def move(folder: Path, out: Path) -> None:
    """Put a folder at another place of the same file system in one step.

    Raises:
        ArtifactError: somebody took that place meanwhile.

    """
    try:
        folder.rename(out)  # over an empty folder, but never over another's export
    except OSError:
        raise ArtifactError(f"{out} was taken while this export ran") from None
