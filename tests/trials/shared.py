"""Services that trials at short scale share, instead of a process each.

A stub runs in a thread here, and trials of the default service share one process. What a trial does
to a process itself (ends it, hangs its engine) it does to one of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

from tests.service.harness import listening
from trials import servers
from trials.engines import TrialEngine
from trials.oracle import artifact, sized
from trials.servers import Service


class Inside(Service):
    """Stub in a thread of this process."""

    def __init__(self, port: int, engines: list[TrialEngine]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.process = SimpleNamespace(pid=os.getpid())
        self._engines = engines

    async def counts(self) -> dict[str, int]:
        """Return the counters of all engines."""
        done = Counter[str]()
        for engine in self._engines:
            done.update(engine.counts)
        return done


def stub(
    engine: dict[str, Any] | None = None, *, models: dict[str, int] | None = None, **settings: Any
) -> AbstractAsyncContextManager[Service]:
    """Run `trials.servers.stub`, in this process unless its engine must hang."""
    if engine and "faults" in engine:
        return servers.stub(engine, models=models, **settings)
    return _inside(engine or {}, models or {}, settings)


@contextlib.asynccontextmanager
async def _inside(
    engine: dict[str, Any], models: dict[str, int], settings: dict[str, Any]
) -> AsyncIterator[Service]:
    own = artifact()
    artifacts = [sized(own, name, size) for name, size in models.items()] or [own]
    engines = [TrialEngine(one.manifest.config, **engine) for one in artifacts]
    with listening(artifacts, engines, log_level="error", **settings) as (_, port):
        yield Inside(port, engines)


@contextlib.contextmanager
def default_service() -> Iterator[Service]:
    """Run the default service, for trials that only send requests."""
    with Service.of_headscope("--log-level", "error") as service:
        service.wait_until_ready()
        yield service


@contextlib.asynccontextmanager
async def lent(service: Service) -> AsyncIterator[Service]:
    """Yield a service without stopping it afterwards."""
    yield service
