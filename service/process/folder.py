"""The folder of a service of several processes, and what is left of those that were killed.

Every process of the service holds a lock on a file in its folder, which the system releases however
the process ends: a folder whose lock can be had alone is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "headscope-"
LOCK = "lock"

_log = logging.getLogger("headscope")


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """A new folder in the system's temporary one, removed at the end; those of the dead are now."""
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob(f"{PREFIX}*"):
        _remove_abandoned(folder)
    with (
        contextlib.ExitStack() as locked,
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as name,
    ):
        folder = Path(name)
        scratch = folder / f"{LOCK}.new"
        scratch.touch()
        locked.enter_context(held(folder, scratch.name))
        scratch.rename(folder / LOCK)  # nobody finds it before it is held
        yield folder


@contextlib.contextmanager
def held(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Be one of the processes whose folder it is, until the end of this one at the latest.

    Raises:
        OSError: the folder is not there any more, or is being removed.

    """
    with (folder / name).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user's, if the lock in it proves that no process has it."""
    try:
        if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
            return
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # not a folder of a service, or just removed by whose it was
        return
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            shutil.rmtree(folder)
        except OSError as error:
            _log.warning(
                "%s, of a service that is gone, cannot be removed: %s", folder, error.strerror
            )
        else:
            _log.info("removed %s, of a service that is gone", folder)
