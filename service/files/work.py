"""The folder beside an output that holds an unfinished run.

OUTPUT.part/lock         the random id of the folder, held by the process that works on it
OUTPUT.part/job.json     the same id, and the run's inputs, options and model
OUTPUT.part/….part       windows of the input that are done
OUTPUT.part/input.txt    standard input, as it was read
OUTPUT.part/output       the output, while it is put together

Only these names are ever removed. A folder without such a lock, and any other thing in it, belongs
to somebody else: the run ends before it computes anything.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from service.files.options import UsageError
from service.files.parts import create, settle, settle_folder

JOB, LOCK, SPOOL, DRAFT = "job.json", "lock", "input.txt", "output"
MARK = re.compile(r"headscope encode ([0-9a-f]{32})\n")
"""Content of a lock: the id of its folder."""
LOCK_SECONDS, LOOK_SECONDS = 1.0, 0.02
"""Longest wait for the lock of a folder that another process has just made; time between looks."""


class WorkFolder:
    """The folder of one output, held by one process at a time."""

    known = re.compile(r"job\.(json|draft)|lock|input\.txt|output|[0-9]{12}\.(part|draft)")
    """Names of the files that this command makes in the folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.part")
        self.spool = self.folder / SPOOL
        self.draft = self.folder / DRAFT
        self._id = ""
        self._replaces = False

    @contextlib.contextmanager
    def held(self, *, restart: bool) -> Iterator[None]:
        """Make or take up the folder, and keep other processes out.

        Args:
            restart: whether an unfinished run is thrown away, and a finished output replaced.

        Raises:
            UsageError: another process works on the output, it is finished, or the folder or
                something in it was not made by this command.

        """
        if self.out.is_dir():
            raise UsageError(f"--out {self.out} is a folder: name a file")
        if not os.path.lexists(self.folder):
            self._check_output(replaces=restart)
        with self._locked() as lock:
            self._id = self._id_of(lock)
            self.check_names()
            if restart:
                self._remove(but=LOCK)
            elif not self._replaces_output():
                self._check_output(replaces=False)
            self._replaces = restart or self._replaces_output()
            yield

    def begin(self, job: Mapping[str, Any]) -> bool:
        """Take up a run, or begin it.

        Args:
            job: all that the output's content follows from.

        Returns:
            Whether it was begun before.

        Raises:
            UsageError: the folder is of another run, or its job file is damaged.

        """
        path = self.folder / JOB
        whole = {"id": self._id, "replaces": self._replaces, "job": job}
        content = orjson.dumps(whole, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
        if (before := self._read_job()) is not None:
            self._check(before["job"], orjson.loads(content)["job"])
            return True
        draft = path.with_suffix(".draft")
        with create(draft) as file:
            file.write(content)
            settle(file)
        draft.replace(path)
        settle_folder(self.folder)
        return False

    def finish(self) -> None:
        """Put the output, which is complete, in its place, and remove the folder.

        Raises:
            UsageError: somebody else has made the output, or something in the folder, meanwhile.

        """
        self.check_names()
        self._check_output(replaces=self._replaces)
        with self.draft.open("rb+") as file:
            settle(file)
        if not self._replaces:
            self._note_replacing()  # a kill after the rename leaves an output of its own
        self.draft.replace(self.out)
        settle_folder(self.out.parent)
        self._remove()

    def discard_unbegun(self) -> None:
        """Leave no folder of a run that did not begin."""
        if not os.path.lexists(self.folder / JOB):
            with contextlib.suppress(FileNotFoundError):
                self._remove()

    def check_names(self) -> None:
        """Raise UsageError if the folder has a thing that this command did not make."""
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
        """Make the folder with its lock, or open the lock of one that exists; hold the lock."""
        with self._made() or self._opened() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process is writing {self.out}") from None
            if not os.fstat(lock.fileno()).st_nlink:
                raise UsageError(f"another process has just written {self.out}")
            yield lock

    def _made(self) -> IO[bytes] | None:
        """Return the lock of a folder made here; None where something has its name."""
        try:
            self.folder.mkdir()
        except FileExistsError:
            return None
        with contextlib.ExitStack() as undo:
            undo.callback(self.folder.rmdir)
            undo.callback((self.folder / LOCK).unlink, missing_ok=True)
            lock = undo.enter_context(create(self.folder / LOCK))
            lock.write(f"headscope encode {secrets.token_hex(16)}\n".encode())
            settle(lock)
            undo.pop_all()
        return lock

    def _opened(self) -> IO[bytes]:
        """Return the lock of the folder.

        Raises:
            UsageError: the folder was not made by this command.

        """
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            kind = "a link" if stat.S_ISLNK(found.st_mode) else "a file"
            raise UsageError(
                f"{self.folder} is {kind}, not a folder of this command: move it away, or choose "
                "another --out"
            )
        until = time.monotonic() + LOCK_SECONDS
        while True:
            with contextlib.suppress(OSError):
                lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
                if stat.S_ISREG(os.fstat(lock).st_mode) and os.fstat(lock).st_size:
                    return os.fdopen(lock, "rb+")
                os.close(lock)
            if time.monotonic() > until or any(self.folder.glob("*")):
                raise self._foreign()
            time.sleep(LOOK_SECONDS)

    def _id_of(self, lock: IO[bytes]) -> str:
        lock.seek(0)
        mark = MARK.fullmatch(lock.read(100).decode("latin-1"))
        if mark is None:
            raise self._foreign()
        return mark[1]

    def _foreign(self) -> UsageError:
        return UsageError(
            f"{self.folder} was not made by this command (it has no {LOCK} of its own): move it "
            "away, or choose another --out"
        )

    def _replaces_output(self) -> bool:
        """Return whether the unfinished run may replace the output."""
        job = self._read_job()
        return job is not None and bool(job["replaces"])

    def _read_job(self) -> dict[str, Any] | None:
        """Return the job file; None without one.

        Raises:
            UsageError: it is damaged, or of another folder.

        """
        path = self.folder / JOB
        if not path.exists():
            return None
        try:
            found = orjson.loads(path.read_bytes())
            matches = found["id"] == self._id and isinstance(found["job"], dict)
            matches = matches and isinstance(found["replaces"], bool)
        except (ValueError, TypeError, KeyError):
            matches = False
        if not matches:
            raise UsageError(
                f"{path} is damaged, or was not written by the run of this folder: begin anew with "
                "--restart"
            )
        job: dict[str, Any] = found
        return job

    def _note_replacing(self) -> None:
        """Note in the job file that the output, once it is there, is the run's own."""
        job = self._read_job()
        draft = (self.folder / JOB).with_suffix(".draft")
        with create(draft) as file:
            file.write(orjson.dumps({**(job or {}), "replaces": True}))
            settle(file)
        draft.replace(self.folder / JOB)

    def _check_output(self, *, replaces: bool) -> None:
        if not replaces and os.path.lexists(self.out):
            raise UsageError(f"{self.out} is there already: --restart replaces it")

    def _remove(self, but: str = "") -> None:
        """Remove the files of the run, and the folder unless a file is to stay."""
        names = [path.name for path in self.folder.iterdir() if self.known.fullmatch(path.name)]
        for name in sorted(names, key=lambda name: name == LOCK):
            if name != but:
                (self.folder / name).unlink()
        if not but:
            self.folder.rmdir()

    def _check(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise UsageError that names what differs between the runs' jobs."""
        names = sorted(
            name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
        )
        if not names:
            return
        differences = []
        for name in names:
            old, new = before.get(name), now.get(name)
            short = not isinstance(old, list | dict) and not isinstance(new, list | dict)
            differences.append(f"{name} (was {old!r}, is {new!r})" if short else name)
        raise UsageError(
            f"{self.folder} is of a run with other {', '.join(differences)}: go on as it was "
            "begun, or begin anew with --restart"
        )
