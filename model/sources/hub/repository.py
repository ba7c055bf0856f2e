"""A hub, and a repository on it at a revision."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from model.errors import SourceError

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
