"""Hard links between identical files of several artifacts, where the file system has links."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from model.artifact.integrity import sha256_of
from model.artifact.manifest import MANIFEST, Artifact

LEAST_BYTES = 2**20
"""Minimum size of a file that is searched for in other artifacts."""


def share_files(artifact: Artifact, folders: Iterable[Path]) -> None:
    """Replace large files of an artifact by hard links to identical files of other artifacts.

    A file that differs from its manifest's record or cannot be linked is left alone.

    Args:
        artifact: artifact that others may read at the same time; each file is replaced atomically.
        folders: folders of the other artifacts.

    """
    wanted = {
        record.sha256: artifact.path(name)
        for name, record in artifact.manifest.files.items()
        if record.bytes >= LEAST_BYTES
    }
    for folder in folders:
        for source, sha256 in _recorded(folder):
            target = wanted.get(sha256)
            if target is not None and _link(source, target, sha256):
                del wanted[sha256]


def _recorded(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of an artifact of any format version, with the SHA-256s in its manifest."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        for name, record in json.loads((folder / MANIFEST).read_bytes())["files"].items():
            yield folder / Path(name).name, record["sha256"]


def _link(source: Path, target: Path, sha256: str) -> bool:
    """Replace the target by a hard link to the source; return whether that was possible."""
    scratch = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if source.is_symlink() or source.samefile(target) or sha256_of(source) != sha256:
            return False
        os.link(source, scratch)
    except OSError:
        return False
    try:
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    return True
