"""The folder beside an output that holds an unfinished run.

OUTPUT.part/job.json     what the run was asked for: inputs, options and model
OUTPUT.part/….part       what is done of it, in windows of the input
OUTPUT.part/input.txt    standard input, as it was read
OUTPUT.part/output       the output, while it is put together
OUTPUT.part/lock         held by the process that works on it
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from service.files.options import UsageError
from service.files.parts import settle, settle_folder

JOB, LOCK, SPOOL, DRAFT = "job.json", "lock", "input.txt", "output"


class WorkFolder:
    """The folder of one output, held by one process at a time."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.part")
        self.spool = self.folder / SPOOL
        self.draft = self.folder / DRAFT

    @contextlib.contextmanager
    def held(self, *, restart: bool) -> Iterator[None]:
        """Keep other processes out.

        Args:
            restart: whether what is there is thrown away.

        Raises:
            UsageError: another process works on the output, or it is finished.

        """
        if self.out.exists() and not self.folder.exists() and not restart:
            raise UsageError(f"{self.out} is there already: --restart replaces it")
        self.folder.mkdir(exist_ok=True)
        with (self.folder / LOCK).open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process is writing {self.out}") from None
            if restart:
                for path in self.folder.iterdir():
                    if path.name != LOCK:
                        path.unlink()
            yield

    def begin(self, job: Mapping[str, Any]) -> bool:
        """Take up a run, or begin it.

        Args:
            job: all that the output's content follows from.

        Returns:
            Whether it was begun before.

        Raises:
            UsageError: what is there is of another run.

        """
        path = self.folder / JOB
        content = orjson.dumps(job, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2)
        if path.exists():
            self._check(orjson.loads(path.read_bytes()), orjson.loads(content))
            return True
        draft = path.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(content)
            settle(file)
        draft.replace(path)
        settle_folder(self.folder)
        return False

    def finish(self) -> None:
        """Put the output, which is complete, in its place, and remove the folder."""
        with self.draft.open("rb+") as file:
            settle(file)
        self.draft.replace(self.out)
        settle_folder(self.out.parent)
        shutil.rmtree(self.folder)

    def discard_unbegun(self) -> None:
        """Leave no folder of a run that did not begin."""
        if self.folder.exists() and not (self.folder / JOB).exists():
            shutil.rmtree(self.folder)

    def _check(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        names = sorted(
            name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
        )
        if names:
            raise UsageError(
                f"{self.folder} is of a run with other {', '.join(names)}: go on as it was begun, "
                "or begin anew with --restart"
            )
