"""Folder beside an output that holds an unfinished run.

OUTPUT.part/lock         mark of this command, locked by the process that uses the folder
OUTPUT.part/job.json     the run's inputs, options and model
OUTPUT.part/….part       completed windows of the input
OUTPUT.part/input.txt    copy of standard input
OUTPUT.part/output       output while it is written

Only files with these names are ever removed. If the folder has any other entry, or files without
such a lock, it is not this command's: the run ends before it computes anything. A killed process
leaves a folder with a lock, or an empty folder, which the next run uses.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypedDict

import orjson

from service.files.options import UsageError
from service.files.parts import replacing, sync, sync_folder

LOCK, JOB, SPOOL, DRAFT = "lock", "job.json", "input.txt", "output"
MARK = b"headscope encode"
"""First bytes of a lock file."""


class JobFile(TypedDict):
    """Content of the job file."""

    replaces: bool
    """Whether a finished output is replaced."""
    job: dict[str, object]
    """All properties that determine the output's content."""


class WorkFolder:
    """Work folder of an output, used by one process at a time."""

    known = re.compile(r"job\.(json|draft)|lock|input\.txt|output|[0-9]{12}\.(part|draft)")
    """Pattern of the names of files that this command creates in the folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.part")
        self.spool = self.folder / SPOOL
        self.draft = self.folder / DRAFT
        self._replaces = False

    @contextlib.contextmanager
    def held(self, *, restart: bool) -> Iterator[None]:
        """Create or open the folder, and lock it against other processes.

        `restart` discards an unfinished run, and replaces a finished output.
        """
        if self.out.is_dir():
            raise UsageError(f"--out {self.out} is a folder: name a file")
        if not os.path.lexists(self.folder):
            self._check_output(replaces=restart)
        with self._locked() as lock:
            try:
                if restart or not os.path.lexists(self.folder / JOB):
                    self._remove_files()  # without a job they are the rest of a killed removal
                if not restart and not self._replaces_output():
                    self._check_output(replaces=False)
                self._replaces = restart or self._replaces_output()
                yield
            finally:  # after `finish`, the folder's name may be another process's
                if os.fstat(lock.fileno()).st_nlink and not os.path.lexists(self.folder / JOB):
                    self._remove()

    def begin(self, job: Mapping[str, object]) -> bool:
        """Start a run, or resume it; return whether it is resumed."""
        if (before := self._read_job()) is not None:
            self._check(before["job"], orjson.loads(orjson.dumps(job)))
            return True
        content: JobFile = {"replaces": self._replaces, "job": {**job}}
        with replacing(self.folder / JOB) as file:
            file.write(orjson.dumps(content, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2))
        return False

    def finish(self) -> None:
        """Move the complete output to its path, and remove the folder."""
        self.check_names()
        self._check_output(replaces=self._replaces)
        with self.draft.open("rb+") as file:
            sync(file)
        if self._replaces:
            self.draft.replace(self.out)
        else:
            try:
                link_new(self.draft, self.out)
            except FileExistsError:
                self._check_output(replaces=False)
                raise
        sync_folder(self.out.parent)
        self.check_names()
        self._remove()

    def check_names(self) -> list[str]:
        """Return the names in the folder; raise UsageError if one is not of this command."""
        with os.scandir(self.folder) as scanned:
            entries = [*scanned]
        for entry in entries:
            if not (entry.is_file(follow_symlinks=False) and self.known.fullmatch(entry.name)):
                raise UsageError(
                    f"{self.folder / entry.name} was not made by this command: move it away, or "
                    "choose another --out"
                )
        return [entry.name for entry in entries]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Create the folder with its lock, or open it; hold the lock."""
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir()
        try:
            if not stat.S_ISDIR(self.folder.lstat().st_mode):
                raise self._foreign("is a file or link, and no folder")
            if (names := self.check_names()) and LOCK not in names:
                raise self._foreign()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            lock = os.fdopen(os.open(self.folder / LOCK, flags, 0o666), "rb+")
        except FileNotFoundError:
            raise UsageError(f"another process has just written {self.out}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process is writing {self.out}") from None
            if not os.fstat(lock.fileno()).st_nlink:
                raise UsageError(f"another process has just written {self.out}")
            if not (mark := lock.read(100)) and self.check_names() == [LOCK]:
                lock.write(MARK + b"\n")
                sync(lock)
            elif not mark.startswith(MARK):
                raise self._foreign()
            yield lock

    def _foreign(self, why: str = f"has no {LOCK} of its own") -> UsageError:
        return UsageError(
            f"{self.folder} was not made by this command (it {why}): move it away, or choose "
            "another --out"
        )

    def _replaces_output(self) -> bool:
        """Return whether the unfinished run may replace the output, or has written it itself."""
        if (job := self._read_job()) is None:
            return False
        linked = self.out.exists() and self.draft.exists() and self.out.samefile(self.draft)
        return job["replaces"] or linked

    def _read_job(self) -> JobFile | None:
        """Return the content of the job file; None if the file does not exist."""
        path = self.folder / JOB
        if not path.exists():
            return None
        try:
            content = orjson.loads(path.read_bytes())
            matches = isinstance(content["job"], dict) and isinstance(content["replaces"], bool)
        except (ValueError, TypeError, KeyError):
            matches = False
        if not matches:
            raise UsageError(f"{path} is damaged: start over with --restart")
        job: JobFile = content
        return job

    def _check_output(self, *, replaces: bool) -> None:
        if not replaces and os.path.lexists(self.out):
            raise UsageError(f"{self.out} already exists: --restart replaces it")

    def _remove_files(self) -> None:
        """Remove the files of the run except its lock, its job first."""
        (self.folder / JOB).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.name != LOCK and self.known.fullmatch(path.name):
                path.unlink()

    def _remove(self) -> None:
        """Remove the folder with the files of the run."""
        self._remove_files()
        (self.folder / LOCK).unlink()
        with contextlib.suppress(OSError):  # another process may have begun its run there
            self.folder.rmdir()

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


def link_new(source: Path, target: Path) -> None:
    """Give a file a second, free name in one step; without hard links, rename it."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        source.rename(target)
