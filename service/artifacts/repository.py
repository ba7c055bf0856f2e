"""Model repository: a folder of artifacts and checkpoints by name, with versions as sub-folders.

    FOLDER/NAME/             an artifact or a checkpoint; its version is 1
    FOLDER/NAME/3/           version 3; versions are whole numbers, and the largest is the newest
    FOLDER/ORG/NAME/…        a name with a slash, as on the hub

The folder is read again for each command, since it changes while the service runs. Links that lead
out of it, and names that start with a dot, are not part of it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.artifact.manifest import MANIFEST
from service.errors import UnknownModel

CHECKPOINT = "config.json"
"""File that every checkpoint has; modules.json may name the folder of its encoder."""
FIRST_VERSION = "1"
LISTED_NAMES = 20
"""Maximum number of names in an error message."""
VERSION_MARK = "@"
"""Separator of a model's name and its version, as in `bge-m3@3`."""
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
Kind = Literal["artifact", "checkpoint", "named"]


@dataclass(frozen=True)
class Target:
    """Name of a model, and possibly its version."""

    name: str
    version: str | None = None
    """Version of the model; None is the current one."""

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target of a name or `NAME@VERSION`."""
        name, _, version = text.rpartition(VERSION_MARK)
        return cls(name, version) if name and version else cls(text)

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}{VERSION_MARK}{self.version}"


@dataclass(frozen=True)
class Source:
    """Folder of a version of a model."""

    name: str
    version: str
    folder: Path
    kind: Kind = "artifact"
    """`named`: a checkpoint that the table of the model names, also one of the hub."""

    @property
    def target(self) -> Target:
        """Name and version."""
        return Target(self.name, self.version)

    @property
    def created(self) -> int:
        """Unix time in seconds at which the manifest or the checkpoint's config was written.

        It is now for a model that a table names, which may be on the hub.

        Raises:
            OSError: the folder has vanished.

        """
        if self.kind == "named":
            return int(time.time())
        name = MANIFEST if self.kind == "artifact" else CHECKPOINT
        return int((self.folder / name).stat().st_mtime)


class Repository:
    """Versions of models that can be loaded."""

    def __init__(
        self,
        root: Path | None = None,
        fixed: tuple[Source, ...] = (),
        versions: Mapping[str, str] | None = None,
    ) -> None:
        """Set the folder.

        `root` is the folder of the models. Models of the settings, `fixed`, hide others of the same
        name. `versions` are default versions in place of the newest.
        """
        self._versions = versions or {}
        self._root = root
        self._fixed = fixed

    def sources(self) -> list[Source]:
        """Return all versions, sorted by name and then by version, the newest last.

        Raises:
            OSError: the folder cannot be read.

        """
        named = {source.name for source in self._fixed}
        if self._root is not None and not self._root.is_dir():
            raise NotADirectoryError(f"{self._root} is not a folder")
        found = [] if self._root is None else list(self._scan(self._root))
        found = [source for source in found if source.name not in named]
        return [*self._fixed, *sorted(found, key=lambda one: (one.name, int(one.version)))]

    def find(self, target: Target) -> Source:
        """Return a version of a model, by default its default version or the newest.

        Raises:
            UnknownModel: there is no such model or version.
            OSError: the folder cannot be read.

        """
        sources = self.sources()
        versions = [source for source in sources if source.name == target.name]
        if not versions:
            names = dict.fromkeys(source.name for source in sources)
            listed = ", ".join(itertools.islice(names, LISTED_NAMES)) or "none"
            raise UnknownModel(f"the repository has no such model; it has: {listed}")
        wanted = target.version or self._versions.get(target.name)
        for source in reversed(versions):
            if wanted in (None, source.version):
                return source
        known = ", ".join(source.version for source in versions)
        raise UnknownModel(f"{target.name} has no such version; it has: {known}")

    def _scan(self, root: Path) -> Iterator[Source]:
        for folder in _folders(root, root):
            models = list(_versions(root, folder, folder.name))
            yield from models
            if not models:
                for inner in _folders(root, folder):
                    yield from _versions(root, inner, f"{folder.name}/{inner.name}")


def _versions(root: Path, folder: Path, name: str) -> Iterator[Source]:
    """Yield the model of a folder, or its versions."""
    if not name.isprintable():
        return
    if kind := _kind(folder):
        yield Source(name, FIRST_VERSION, folder, kind)
        return
    for inner in _folders(root, folder):
        if _VERSION.fullmatch(inner.name) and (kind := _kind(inner)):
            yield Source(name, inner.name, inner, kind)


def _folders(root: Path, folder: Path) -> Iterator[Path]:
    """Yield the readable sub-folders that are inside the root; a vanished folder has none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or not path.is_dir():  # also a link to itself
                continue
            readable = os.access(path, os.R_OK | os.X_OK)  # lost+found is not
            if readable and path.resolve().is_relative_to(root.resolve()):
                yield path


def _kind(folder: Path) -> Kind | None:
    if (folder / MANIFEST).is_file():
        return "artifact"
    return "checkpoint" if (folder / CHECKPOINT).is_file() else None
