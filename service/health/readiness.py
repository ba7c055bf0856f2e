"""Readiness of this process and of all workers of a service.

Workers query each other over one UNIX socket for each of them. A query and its answer are one line
each. Workers that do not run are ignored, as they accept no connections of clients either.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from service.errors import EngineUnavailable
from service.health.engine import PROBE_SECONDS, EngineHealth

Answers = Mapping[str, Callable[[], Awaitable[str]]]
"""Function that answers each question in one line."""
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
            if answer_of := answers.get(question):
                answered = " ".join((await answer_of()).splitlines())
                writer.write(answered.encode() + b"\n")
            writer.close()

        self._own.unlink(missing_ok=True)  # left by a killed worker
        async with await asyncio.start_unix_server(answer, self._own):
            yield

    async def ask(self, question: str, seconds: float) -> dict[int, str]:
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


DEGRADED = "degraded: "
"""Prefix of a worker's answer while a stand-in serves in that worker."""
ANSWER_SECONDS = 1.0
"""Time limit for another worker to answer, in addition to its own check."""


class Readiness:
    """Readiness of all models, in this process and in all workers of a service."""

    def __init__(
        self, models: Callable[[], Mapping[str, EngineHealth]], peers: Peers | None
    ) -> None:
        self.draining = False
        """Whether the process is stopping."""
        self._models = models
        self._peers = peers

    @property
    def known_failure(self) -> str:
        """Reason for which this process is not ready, as known without a probe; or empty."""
        if self.draining:
            return "the service is stopping"
        failures = (model.known_failure for model in self._models().values())
        return next(filter(None, failures), "")

    @property
    def lost_devices(self) -> str:
        """Lost devices of this process's models; or empty."""
        return "; ".join(
            f"{name}: device {device.id} is lost"
            for name, model in self._models().items()
            for device in model.engines.default.engine.devices
            if device.state == "lost"
        )

    async def check(self) -> str:
        """Return the failure for which a stand-in serves in any worker, else empty.

        Raises:
            EngineUnavailable: a worker or a model does not answer, or its answers are wrong.

        """
        failure, degraded = await self._check_process()
        if self._peers and not failure:
            answers = await self._peers.ask("ready", PROBE_SECONDS + ANSWER_SECONDS)
            for index, answer in answers.items():
                if answer.startswith(DEGRADED):
                    degraded = degraded or f"worker {index}: {answer.removeprefix(DEGRADED)}"
                elif answer:
                    failure = failure or f"worker {index}: {answer}"
        if failure:
            raise EngineUnavailable(failure, retry_after_seconds=5)
        return degraded

    async def answer(self) -> str:
        """Return this worker's answer to the others: empty, the stand-in's reason, or a failure."""
        failure, degraded = await self._check_process()
        return failure or (DEGRADED + degraded if degraded else "")

    async def _check_process(self) -> tuple[str, str]:
        """Return the failures of this process's models, and the reasons for which stand-ins serve.

        Messages name each of several models.
        """
        if self.draining:
            return "the service is stopping", ""
        models = self._models()
        results = await asyncio.gather(*(model.check() for model in models.values()))
        if len(results) == 1:
            return results[0]
        named = list(zip(models, results, strict=True))
        failures = [f"{name}: {failure}" for name, (failure, _) in named if failure]
        degraded = [f"{name}: {reason}" for name, (_, reason) in named if reason]
        return "; ".join(failures), "; ".join(degraded)
