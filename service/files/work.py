"""Folder beside an output that holds an unfinished run.

OUTPUT.part/lock         random id of the folder, locked by the process that uses it
OUTPUT.part/job.json     same id, and the run's inputs, options and model
OUTPUT.part/….part       completed windows of the input
OUTPUT.part/input.txt    copy of standard input
OUTPUT.part/output       output while it is written

Only files with these names are ever removed. If the folder lacks such a lock, or has any other
entry, it is not this command's: the run ends before it computes anything.

The folder is created and removed under the scratch name `FOLDER.ID`. A killed process therefore
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO, NotRequired, TypedDict

import orjson

from service.files.options import UsageError
from service.files.parts import create, replacing, sync, sync_folder

LOCK = "lock"
MARK = re.compile(r"headscope encode ([0-9a-f]{32})\n")
"""Content of a lock file: the id of its folder."""
_ID = re.compile(r"[0-9a-f]{32}")
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


def claim(folder: Path) -> BinaryIO | None:
    """Create a folder with a lock, and return the held lock; None if the folder's name is taken."""
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
    """Remove a folder that contains only its lock, which this process holds."""
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

    Linux checks the name and renames in one step
    (https://man7.org/linux/man-pages/man2/rename.2.html). If the file system does not support that
    (NFS), the name is checked before.
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


JOB, SPOOL, DRAFT = "job.json", "input.txt", "output"


class JobFile(TypedDict):
    """Content of the job file."""

    id: str
    """Id of the work folder."""
    replaces: bool
    """Whether a finished output is replaced."""
    job: dict[str, object]
    """All properties that determine the output's content."""
    output: NotRequired[int | None]
    """Inode of the complete output."""


class WorkFolder:
    """Work folder of an output, used by one process at a time."""

    known = re.compile(r"job\.(json|draft)|lock|input\.txt|output|[0-9]{12}\.(part|draft)")
    """Pattern of the names of files that this command creates in the folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.part")
        self.spool = self.folder / SPOOL
        self.draft = self.folder / DRAFT
        self._id = ""
        self._replaces = False

    @contextlib.contextmanager
    def held(self, *, restart: bool) -> Iterator[None]:
        """Create or open the folder, and lock it against other processes.

        `restart` discards an unfinished run, and replaces a finished output.
        """
        if self.out.is_dir():
            raise UsageError(f"--out {self.out} is a folder: name a file")
        tidy(self.folder)
        if not os.path.lexists(self.folder):
            self._check_output(replaces=restart)
        with self._locked() as lock:
            self._id = self._id_of(lock)
            self.check_names()
            try:
                if restart:
                    self._remove_files()
                elif not self._replaces_output():
                    self._check_output(replaces=False)
                self._replaces = restart or self._replaces_output()
                yield
            finally:
                self._discard_unbegun()

    def begin(self, job: Mapping[str, object]) -> bool:
        """Start a run, or resume it; return whether it is resumed."""
        if (before := self._read_job()) is not None:
            self._check(before["job"], orjson.loads(orjson.dumps(job)))
            return True
        self._write_job({"id": self._id, "replaces": self._replaces, "job": {**job}})
        return False

    def finish(self) -> None:
        """Move the complete output to its path, and remove the folder."""
        self.check_names()
        self._check_output(replaces=self._replaces)
        with self.draft.open("rb+") as file:
            sync(file)
        self._note_output()
        if self._replaces:
            self.draft.replace(self.out)
        else:
            try:
                rename_new(self.draft, self.out)
            except FileExistsError:
                self._check_output(replaces=False)
                raise
        sync_folder(self.out.parent)
        self._remove_files()
        self.check_names()
        self._release()

    def check_names(self) -> None:
        """Raise UsageError if the folder has an entry that this command did not make."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                regular = entry.is_file(follow_symlinks=False)
                if not (regular and self.known.fullmatch(entry.name)):
                    raise UsageError(
                        f"{self.folder / entry.name} was not made by this command: move it away, "
                        "or choose another --out"
                    )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Create the folder with its lock, or open an existing lock; hold the lock."""
        with claim(self.folder) or self._opened() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process is writing {self.out}") from None
            if not os.fstat(lock.fileno()).st_nlink:
                raise UsageError(f"another process has just written {self.out}")
            yield lock

    def _opened(self) -> IO[bytes]:
        """Return the lock of the folder."""
        try:
            if not stat.S_ISDIR(self.folder.lstat().st_mode):
                raise self._foreign("is a file or link, and no folder")
            return open_lock(self.folder)
        except OSError:
            if not os.path.lexists(self.folder):
                raise UsageError(f"another process has just written {self.out}") from None
            raise self._foreign() from None

    def _id_of(self, lock: IO[bytes]) -> str:
        lock.seek(0)
        mark = MARK.fullmatch(lock.read(100).decode("latin-1"))
        if mark is None:
            raise self._foreign()
        return mark[1]

    def _foreign(self, why: str = f"has no {LOCK} of its own") -> UsageError:
        return UsageError(
            f"{self.folder} was not made by this command (it {why}): move it away, or choose "
            "another --out"
        )

    def _replaces_output(self) -> bool:
        """Return whether the unfinished run may replace the output, or has written it itself."""
        job = self._read_job()
        if job is None:
            return False
        output = job.get("output")
        return job["replaces"] or (output is not None and output == _inode(self.out))

    def _read_job(self) -> JobFile | None:
        """Return the content of the job file; None if the file does not exist."""
        path = self.folder / JOB
        if not path.exists():
            return None
        try:
            content = orjson.loads(path.read_bytes())
            matches = content["id"] == self._id and isinstance(content["job"], dict)
            matches = matches and isinstance(content["replaces"], bool)
        except (ValueError, TypeError, KeyError):
            matches = False
        if not matches:
            raise UsageError(
                f"{path} is damaged, or was not written by the run of this folder: start over with "
                "--restart"
            )
        job: JobFile = content
        return job

    def _note_output(self) -> None:
        """Store the output's inode in the job file, because a kill may follow the final rename."""
        if job := self._read_job():
            self._write_job({**job, "output": _inode(self.draft)})

    def _write_job(self, job: JobFile) -> None:
        with replacing(self.folder / JOB) as file:
            file.write(orjson.dumps(job, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2))

    def _check_output(self, *, replaces: bool) -> None:
        if not replaces and os.path.lexists(self.out):
            raise UsageError(f"{self.out} already exists: --restart replaces it")

    def _remove_files(self) -> None:
        """Remove the files of the run except its lock."""
        for path in self.folder.iterdir():
            if path.name != LOCK and self.known.fullmatch(path.name):
                path.unlink()

    def _discard_unbegun(self) -> None:
        """Remove the folder of a run that has not begun."""
        if self._id and not os.path.lexists(self.folder / JOB):
            self._remove_files()
            if [path.name for path in self.folder.iterdir()] == [LOCK]:
                self._release()

    def _release(self) -> None:
        release(self.folder, self._id)
        self._id = ""  # the folder's name may be another process's now

    def _check(self, before: Mapping[str, object], now: Mapping[str, object]) -> None:
        """Raise UsageError with the differences between the jobs, if there are any."""
        differences = []
        for name in sorted(before.keys() | now.keys()):
            old, new = before.get(name), now.get(name)
            if old != new:
                short = not isinstance(old, list | dict) and not isinstance(new, list | dict)
                differences.append(f"{name} (was {old!r}, is {new!r})" if short else name)
        if not differences:
            return
        raise UsageError(
            f"{self.folder} belongs to a run with other {', '.join(differences)}: resume with the "
            "same command, or start over with --restart"
        )


def _inode(path: Path) -> int | None:
    """Return the inode of a file; None if the file does not exist."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
