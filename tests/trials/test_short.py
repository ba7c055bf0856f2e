"""Every trial at its short scale, as `python -m trials.NAME --short` runs it."""

from __future__ import annotations

import pytest

from trials import fuzz, soak
from trials.chaos import TRIALS
from trials.gates import Scale, Trial

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("name", [*TRIALS, "soak", "fuzz"])
def test_every_gate_holds(name: str) -> None:
    trials: dict[str, Trial] = {**TRIALS, "soak": soak.run, "fuzz": fuzz.run}
    gates = trials[name](Scale.SHORT)
    assert gates
    assert [gate for gate in gates if not gate.passed] == []
