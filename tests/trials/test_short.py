"""Every trial at its short scale, as `python -m trials NAME --short` runs it.

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

import pytest

from tests.service.harness import listening
from trials import faults, mixups, neighbours, overload, servers
from trials.__main__ import GROUPS, run
from trials.gates import Scale
from trials.oracle import artifact, sized
from trials.servers import Service
from trials.stub import TrialEngine

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ALWAYS = {"mixups", "models", "disconnects"}
"""Trials whose gates hold after seconds; the others are nightly."""


class Inside(Service):
    """Stub in a thread of this process."""

    def __init__(self, port: int, engines: list[TrialEngine]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.process = SimpleNamespace(pid=os.getpid())
        self._engines = engines

    async def counts(self) -> dict[str, int]:
        """Return the counters of all engines, zeros included."""
        done = Counter[str]()
        for engine in self._engines:
            done.update(engine.counts)
        return done


def stub(
    engine: dict[str, Any] | None = None, *, models: dict[str, int] | None = None, **settings: Any
) -> AbstractAsyncContextManager[Service]:
    """Run `trials.servers.stub` in this process, unless its engine hangs or the trial ends it."""
    if "faults" in (engine or {}) or "drain_seconds" in settings:
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


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Run the default service, for trials that only send requests."""
    with Service.of_headscope("--log-level", "error") as service:
        service.wait_until_ready()
        yield service


@pytest.fixture
def _few_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def lent(*flags: str) -> AsyncIterator[Service]:
        if flags:
            async with servers.serve(*flags) as own:
                yield own
        else:
            yield request.getfixturevalue("service")

    for module in (faults, mixups, overload):
        monkeypatch.setattr(module, "stub", stub)
    for module in (mixups, neighbours, overload):
        monkeypatch.setattr(module, "serve", lent)


@pytest.mark.usefixtures("_few_processes")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name not in ALWAYS))
        for name in (*GROUPS["chaos"], "soak", "fuzz")
    ],
)
def test_every_gate_holds(name: str) -> None:
    gates = run(name, Scale.SHORT)
    assert gates
    assert [gate for gate in gates if not gate.passed] == []
