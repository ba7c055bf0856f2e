"""Gates of trials: bounds that must hold, and their table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.harness.report import markdown


class Scale(Enum):
    """Size of a trial: full, as in docs/runbook.md, or short enough for a test."""

    FULL = "full"
    SHORT = "short"

    def of(self, full: int, short: int) -> int:
        """Return the count of this scale."""
        return full if self is Scale.FULL else short

    @property
    def slack(self) -> float:
        """Factor by which a bound on time may be exceeded: infinite at short scale."""
        return 1.0 if self is Scale.FULL else math.inf


@dataclass(frozen=True)
class Gate:
    """Bound, measured value, and whether the bound holds."""

    name: str
    must: str
    found: str
    passed: bool


def at_least(name: str, least: float, found: float, unit: str = "") -> Gate:
    return Gate(name, f"≥ {_shown(least)}{unit}", f"{_shown(found)}{unit}", found >= least)


def at_most(name: str, most: float, found: float, unit: str = "") -> Gate:
    """Return the gate of an upper bound; an infinite value never passes."""
    passed = found <= most and math.isfinite(found)
    return Gate(name, f"≤ {_shown(most)}{unit}", f"{_shown(found)}{unit}", passed)


def exactly(name: str, expected: object, found: object) -> Gate:
    return Gate(name, str(expected), str(found), found == expected)


def table(gates: Sequence[Gate]) -> str:
    """Return the gates as a Markdown table."""
    rows = ((g.name, g.must, g.found, "yes" if g.passed else "NO") for g in gates)
    return markdown(("gate", "must", "found", "passed"), rows)


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
