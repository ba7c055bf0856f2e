"""Hugging Face's cache of downloads, in the form that other tools write.

Format: `models--organisation--model/refs/REVISION` holds a commit, `snapshots/COMMIT/` the files
as links to `blobs/`, and an empty `.no_exist/COMMIT/NAME` marks a file that the commit lacks
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from model.sources.checkpoint_files import deciding, lacking
from model.sources.hub.repository import Repository

DEFAULT_REVISION = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Snapshot:
    """Cached files of a repository at a commit."""

    folder: Path
    lacks: list[str]
    """Files that are missing for a complete checkpoint."""
    unknown: list[str]
    """Files for which the cache does not show whether the repository has them: tools that download
    only the encoder do not look for `modules.json` or bge-m3's linear maps, and some not for
    `model.safetensors`."""


def find(cache: Path, repository: Repository, *, pickles: bool = True) -> Snapshot | None:
    """Return the cached snapshot of a repository; None if there is none.

    Args:
        cache: the cache's folder.
        repository: the repository, at a revision.
        pickles: whether pickles count where there are no safetensors.

    """
    home = cache / repository.folder
    commit = _commit(home, repository.revision or DEFAULT_REVISION)
    if commit is None or not (home / "snapshots" / commit).is_dir():
        return None
    folder = home / "snapshots" / commit
    shown = (folder, home / ".no_exist" / commit)
    decide = deciding(folder, pickles=pickles)
    unknown = [name for name in decide if not any((at / name).is_file() for at in shown)]
    return Snapshot(folder, lacking(folder, pickles=pickles), unknown)


def name_of(folder: Path) -> str | None:
    """Return the repository of a snapshot folder; None if the folder is not a snapshot."""
    home = folder.parent.parent.name
    if folder.parent.name == "snapshots" and home.startswith("models--"):
        return home.removeprefix("models--").replace("--", "/")
    return None


def _commit(home: Path, revision: str) -> str | None:
    try:
        text = (home / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        text = revision
    return text if _COMMIT.fullmatch(text) else None
