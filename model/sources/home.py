"""Folders below a home folder, which not every user has and not every user may write to."""

from __future__ import annotations

import os
from pathlib import Path

from model.errors import SourceError

EXPORTS, HUB = "HEADSCOPE_CACHE_FOLDER (--cache-folder of serve)", "HF_HOME"
"""Settings of the caches of exports and of the hub."""


def expanded(path: str | Path) -> Path:
    """Return a path with `~` and `~user` expanded if that home exists."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path's own raises where there is none


def check_home(folder: Path, setting: str) -> None:
    """Raise SourceError, with the setting, if a cache is below a home that the user lacks."""
    if str(folder).startswith("~"):
        raise SourceError(
            f"{folder} needs a home folder, which this user does not have: set {setting} to a "
            "folder that this user may write to"
        )


def make_cache(folder: Path, setting: str) -> None:
    """Create a folder of a cache; raise SourceError, with the setting, if it is not writable."""
    check_home(folder, setting)
    reason = "Permission denied, or read-only"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return
    except OSError as error:
        reason = error.strerror or str(error)
    raise SourceError(
        f"the cache {folder} cannot be written to ({reason}): set {setting} to a folder that this "
        "user may write to"
    )
