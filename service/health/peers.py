"""Queries between the workers of a service, over one UNIX socket for each worker.

A query and its answer are one line each. Workers that do not run are ignored, as they accept no
connections of clients either.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal

Question = Literal["ready", "refresh"]
Answers = Mapping[Question, Callable[[], Awaitable[str]]]
"""Functions that answer a question in one line."""
SILENT = "it does not answer"


class Peers:
    """Other workers of the service."""

    def __init__(self, folder: Path, index: int, workers: int) -> None:
        self.folder = folder
        self.index = index
        """Index of this worker."""
        self._own = self._path(index)
        self._others = {other: self._path(other) for other in range(workers) if other != index}

    @contextlib.asynccontextmanager
    async def answering(self, answers: Answers) -> AsyncIterator[None]:
        """Answer the queries of other workers while the block runs."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            question = (await reader.readline()).decode().rstrip("\n")
            for name, answer_of in answers.items():
                if name == question:
                    answered = " ".join((await answer_of()).splitlines())
                    writer.write(answered.encode() + b"\n")
            writer.close()

        self._own.unlink(missing_ok=True)  # left by a killed worker
        async with await asyncio.start_unix_server(answer, self._own):
            yield

    async def ask(self, question: Question, seconds: float) -> dict[int, str]:
        """Return the answer of every other running worker by index; `SILENT` after a timeout."""
        line = f"{question}\n".encode()
        answers = await asyncio.gather(
            *(self._ask(path, line, seconds) for path in self._others.values())
        )
        by_index = zip(self._others, answers, strict=True)
        return {index: answer for index, answer in by_index if answer is not None}

    def _path(self, index: int) -> Path:
        return self.folder / f"worker-{index}.sock"

    @staticmethod
    async def _ask(path: Path, line: bytes, seconds: float) -> str | None:
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(line)
                    answer = await reader.readline()
                finally:
                    writer.close()
        except TimeoutError:
            return SILENT
        except OSError:  # the worker does not run
            return None
        return answer.decode().rstrip("\n") if answer.endswith(b"\n") else None
