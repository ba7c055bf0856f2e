"""How the workers of one service ask each other: a UNIX socket each, a line there and a line back.

A worker that does not run takes no connections either, so it has no say: only those count whose
socket somebody answers, or should.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal

Question = Literal["ready", "refresh"]
Answers = Mapping[Question, Callable[[], Awaitable[str]]]
SILENT = "it does not answer"


class Peers:
    """The other workers."""

    def __init__(self, folder: Path, index: int, workers: int) -> None:
        self.folder = folder
        self.index = index
        """Number of this worker."""
        self._own = self._path(index)
        self._others = {other: self._path(other) for other in range(workers) if other != index}

    @contextlib.asynccontextmanager
    async def answering(self, answers: Answers) -> AsyncIterator[None]:
        """Answer the others meanwhile."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            question = (await reader.readline()).decode().strip()
            for name, tell in answers.items():
                if name == question:
                    writer.write((await tell()).encode() + b"\n")
            writer.close()

        self._own.unlink(missing_ok=True)  # of a worker that was killed
        async with await asyncio.start_unix_server(answer, self._own):
            yield

    async def ask(self, question: Question, seconds: float) -> dict[int, str]:
        """What every other worker that runs answers; `SILENT` for one that does not in time."""
        answers = await asyncio.gather(
            *(self._ask(path, question, seconds) for path in self._others.values())
        )
        found = zip(self._others, answers, strict=True)
        return {index: answer for index, answer in found if answer is not None}

    def _path(self, index: int) -> Path:
        return self.folder / f"worker-{index}.sock"

    @staticmethod
    async def _ask(path: Path, question: Question, seconds: float) -> str | None:
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(f"{question}\n".encode())
                    answer = await reader.readline()
                finally:
                    writer.close()
        except TimeoutError:
            return SILENT
        except OSError:  # nobody has the socket
            return None
        return answer.decode().rstrip("\n") if answer.endswith(b"\n") else None
