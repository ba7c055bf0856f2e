"""Creation and removal of folders that are locked for as long as they have their name.

A folder is created and removed under the scratch name `FOLDER.ID`. A killed process therefore
leaves a folder with a lock, or a scratch folder, which no run mistakes for its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from service.files.parts import create, sync

LOCK = "lock"
MARK = re.compile(r"headscope encode ([0-9a-f]{32})\n")
"""Content of a lock file: the id of its folder."""
_ID = re.compile(r"[0-9a-f]{32}")
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


def claim(folder: Path) -> BinaryIO | None:
    """Create a folder with a lock, and hold the lock.

    Returns:
        The lock; None if the folder's name is taken.

    """
    while True:
        id_ = secrets.token_hex(16)
        scratch = _scratch_of(folder, id_)
        scratch.mkdir()
        with contextlib.ExitStack() as undo:
            undo.callback(_remove, scratch)
            try:
                lock = undo.enter_context(create(scratch / LOCK))
                lock.write(_mark(id_))
                sync(lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
                rename_new(scratch, folder)
            except FileNotFoundError:  # removed as a killed process's folder: see `tidy`
                continue
            except FileExistsError:
                return None
            undo.pop_all()
        return lock


def release(folder: Path, id_: str) -> None:
    """Remove a folder that contains only its lock, which this process holds.

    Raises:
        OSError: the folder cannot be removed.

    """
    scratch = _scratch_of(folder, id_)
    rename_new(folder, scratch)
    _remove(scratch)


def tidy(folder: Path) -> None:
    """Remove the scratch folders of a folder that killed processes have left."""
    with os.scandir(folder.parent) as entries:
        candidates = [
            (Path(entry.path), entry.name.removeprefix(f"{folder.name}."))
            for entry in entries
            if entry.name.startswith(f"{folder.name}.") and entry.is_dir(follow_symlinks=False)
        ]
    for scratch, id_ in candidates:
        if _ID.fullmatch(id_):
            with contextlib.suppress(OSError):
                _tidy(scratch, id_)


def rename_new(source: Path, target: Path) -> None:
    """Rename a file or folder to a free name.

    Linux checks the name and renames in one step (https://man7.org/linux/man-pages/man2/rename.2.html).
    If the file system does not support that (NFS), the name is checked before.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        paths = _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target)
        if renameat2(*paths, _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), str(source), None, str(target))
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    source.rename(target)


def _tidy(scratch: Path, id_: str) -> None:
    """Remove a scratch folder that is empty, or contains only an unheld lock."""
    if [path.name for path in scratch.iterdir()] == [LOCK]:
        with contextlib.closing(open_lock(scratch)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.read() in (b"", _mark(id_)):
                _remove(scratch)
    else:
        scratch.rmdir()


def open_lock(folder: Path) -> BinaryIO:
    """Open the lock file of a folder."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise FileNotFoundError(errno.ENOENT, "it is not a regular file", str(folder / LOCK))
    return os.fdopen(lock, "rb+")


def _scratch_of(folder: Path, id_: str) -> Path:
    return folder.with_name(f"{folder.name}.{id_}")


def _mark(id_: str) -> bytes:
    return f"headscope encode {id_}\n".encode()


def _remove(scratch: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (scratch / LOCK).unlink(missing_ok=True)
        scratch.rmdir()
