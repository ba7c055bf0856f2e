"""Every trial at its short scale, as `python -m trials.NAME --short` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import pytest

from tests.trials.shared import default_service, lent, stub
from trials import (
    batching,
    bodies,
    disconnects,
    explanations,
    faults,
    fuzz,
    mixups,
    models,
    neighbours,
    overload,
    pairs,
    saturation,
    soak,
    stalls,
)
from trials.chaos import TRIALS
from trials.gates import Scale, Trial
from trials.servers import Service

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ALWAYS = {"mixups", "models", "disconnects"}
"""Trials whose gates hold after seconds; the others are nightly."""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with default_service() as service:
        yield service


@pytest.fixture
def _few_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def shared() -> AbstractAsyncContextManager[Service]:
        return lent(request.getfixturevalue("service"))

    for module in (disconnects, faults, mixups, models, overload, stalls):
        monkeypatch.setattr(module, "stub", stub)
    for module in (bodies, batching, explanations, neighbours, pairs, saturation):
        monkeypatch.setattr(module, "serve", shared)


@pytest.mark.usefixtures("_few_processes")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name not in ALWAYS))
        for name in (*TRIALS, "soak", "fuzz")
    ],
)
def test_every_gate_holds(name: str) -> None:
    trials: dict[str, Trial] = {**TRIALS, "soak": soak.run, "fuzz": fuzz.run}
    gates = trials[name](Scale.SHORT)
    assert gates
    assert [gate for gate in gates if not gate.passed] == []
