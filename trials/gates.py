"""Gates of trials: bounds that must hold, their table, and the command line of a trial."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path


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


Trial = Callable[[Scale], list[Gate]]


def at_least(name: str, least: float, found: float, unit: str = "") -> Gate:
    return Gate(name, f"≥ {_shown(least)}{unit}", f"{_shown(found)}{unit}", found >= least)


def at_most(name: str, most: float, found: float, unit: str = "") -> Gate:
    """Return the gate of an upper bound; an infinite value never passes."""
    return Gate(
        name,
        f"≤ {_shown(most)}{unit}",
        f"{_shown(found)}{unit}",
        found <= most and math.isfinite(found),
    )


def exactly(name: str, expected: object, found: object) -> Gate:
    return Gate(name, str(expected), str(found), found == expected)


def table(gates: Sequence[Gate]) -> str:
    """Return the gates as a Markdown table."""
    rows = ["| gate | must | found | passed |", "|---|---|---|---|"]
    rows += [f"| {g.name} | {g.must} | {g.found} | {'yes' if g.passed else 'NO'} |" for g in gates]
    return "\n".join(rows)


def main(description: str | None, **trials: Trial) -> None:
    """Run trials from the command line: print their gates, and exit with 1 if any fails."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="run at the scale of the tests")
    parser.add_argument("--json", type=Path, help="file for the gates")
    if len(trials) > 1:
        parser.add_argument("--only", nargs="+", choices=trials, default=list(trials))
    options = parser.parse_args()
    scale = Scale.SHORT if options.short else Scale.FULL
    gates = []
    for name in getattr(options, "only", trials):
        gates_of_trial = trials[name](scale)
        print(f"\n{name}\n\n{table(gates_of_trial)}", flush=True)
        gates += gates_of_trial
    if options.json:
        content = {"scale": scale.value, "gates": [asdict(gate) for gate in gates]}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sys.exit(not all(gate.passed for gate in gates))


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
