"""A hub, a repository on it at a revision, and Hugging Face's cache of downloads.

Format of the cache: `models--organisation--model/refs/REVISION` holds a commit, `snapshots/COMMIT/`
the files as links to `blobs/`, and an empty `.no_exist/COMMIT/NAME` marks a file that the commit
lacks (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from model.errors import SourceError
from model.sources.checkpoint_files import deciding, lacking

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


def find_cached(cache: Path, repository: Repository, *, pickles: bool = True) -> Snapshot | None:
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


def cached_name(folder: Path) -> str | None:
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


_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?:{_PART}/)?{_PART}")
_MAX_NAME = 96
"""Maximum length of a repository's own name, as on the hub."""
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/@-]*")


@dataclass(frozen=True)
class Hub:
    """Hugging Face hub, and the cache of its files on this machine."""

    endpoint: str
    """Base URL of the hub."""
    cache: Path
    """Folder of `models--organisation--model` folders, shared with other tools."""
    offline: bool = False
    """Whether only the cache may be used."""
    pickles: bool = True
    """Whether pickled weights may be fetched if a checkpoint lacks safetensors."""


@dataclass(frozen=True)
class Repository:
    """Model on a hub at a revision."""

    name: str
    """Name `organisation/model`, or `model` alone."""
    revision: str | None = None
    """Branch, tag or commit; the hub's `main` when None."""

    @classmethod
    def parse(cls, text: str, revision: str | None = None) -> Repository:
        """Parse `name` or `name@revision`.

        Raises:
            SourceError: the name or the revision is invalid, or two revisions are given.

        """
        name, _, own = text.partition("@")
        if not is_name(name):
            raise SourceError(f"{text} is neither a folder nor a model's name")
        if "@" in text and revision not in (None, own):
            raise SourceError(f"{text} names a revision, and --revision {revision} another")
        chosen = own if "@" in text else revision
        if chosen is not None and (not _REVISION.fullmatch(chosen) or ".." in chosen):
            raise SourceError(
                f"{chosen!r} is not a revision of {name}: give a branch, tag or commit"
            )
        return cls(name, chosen)

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def folder(self) -> str:
        """Name of the repository's folder in the cache."""
        return "--".join(["models", *self.name.split("/")])


def is_name(text: str) -> bool:
    """Return whether a hub accepts this as a repository's name."""
    own = text.rpartition("/")[2]
    return (
        bool(_NAME.fullmatch(text))
        and len(own) <= _MAX_NAME
        and "--" not in text
        and ".." not in text
        and not text.endswith(".git")
    )
