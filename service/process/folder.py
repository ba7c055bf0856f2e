"""Temporary folder that the processes of a service share.

Every process of the service holds a shared lock on a file in the folder, which the system releases
however the process ends. A folder is abandoned if its lock has a service's mark and can be acquired
exclusively. The next service removes it, unless it holds a file that no service makes.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "headscope-"
LOCK = "lock"
MARK = b"headscope service\n"
"""Content of a lock."""
KNOWN = re.compile(r"worker-\d+\.sock|(gauge_[a-z]+|counter|histogram|summary)_\d+\.db|lock")
"""Names of the files that a service makes: its workers' sockets and metrics, and the lock."""

_log = logging.getLogger("headscope")


@contextlib.contextmanager
def made() -> Iterator[Path]:
    """Create a temporary folder while the block runs, and first remove abandoned folders."""
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob(f"{PREFIX}*"):
        _remove_abandoned(folder)
    with (
        contextlib.ExitStack() as locked,
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as name,
    ):
        folder = Path(name)
        scratch = folder / f"{LOCK}.new"
        scratch.write_bytes(MARK)
        locked.enter_context(held(folder, scratch.name))
        scratch.rename(folder / LOCK)  # other processes must not find it unlocked
        yield folder


@contextlib.contextmanager
def held(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold the folder's lock while the block runs, at most until the process ends.

    Raises:
        OSError: the folder does not exist any more, or is being removed.

    """
    with (folder / name).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user if its lock proves that a service made it and has ended."""
    try:
        if folder.is_symlink() or folder.lstat().st_uid != os.geteuid():
            return
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # not a folder of a service, or removed meanwhile
        return
    with open(descriptor, "rb") as file:  # noqa: PTH123 - opens a descriptor
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or file.read(100) != MARK:
                return
        except OSError:  # its service runs
            return
        try:
            _remove(folder)
        except OSError as error:
            _log.warning(
                "%s, of a service that has ended, cannot be removed: %s", folder, error.strerror
            )


def _remove(folder: Path) -> None:
    """Remove the files of an ended service and their folder; nothing if it holds another file."""
    # the lock goes last: a removal that is killed can be repeated
    paths = sorted(folder.iterdir(), key=lambda path: path.name == LOCK)
    foreign = [path.name for path in paths if not KNOWN.fullmatch(path.name)]
    if foreign:
        _log.warning(
            "%s, of a service that has ended, is left: no service made %s in it",
            folder,
            foreign[0],
        )
        return
    for path in paths:
        path.unlink()
    folder.rmdir()
    _log.info("removed %s, of a service that has ended", folder)
