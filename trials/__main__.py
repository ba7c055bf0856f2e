"""Trials of load, faults and abuse: their gates, and exit code 1 if any does not hold.

python -m trials overload --short
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import sys
from dataclasses import asdict
from pathlib import Path

from trials.gates import Gate, Scale, table

MODULES = {
    "overload": ("overload", "saturation", "explanations"),
    "mixups": ("mixups", "models", "batching"),
    "faults": ("faults", "disconnects", "stalls", "stops"),
    "swaps": ("swaps", "loads"),
    "neighbours": ("neighbours", "at_once", "pairs", "picture_loads", "bodies", "abuse"),
    "soak": ("soak",),
    "fuzz": ("fuzz",),
    "files": ("file_kills", "file_rate", "small_kills", "full_disk", "contention", "foreign"),
    "replicas": ("replicas", "capacity"),
    "alerts": (
        *("alert_workers", "alert_failures", "alert_saturated", "alert_clients"),
        *("alert_balancers", "alert_models", "alert_memory"),
    ),
    "ray": ("ray_serve", "ray_change", "ray_corpus"),
}
"""Trials by their module, which has a function of each trial's name."""
GROUPS = {
    "chaos": [
        name
        for module in ("overload", "mixups", "faults", "swaps", "neighbours")
        for name in MODULES[module]
        if name != "abuse"
    ],
    "files": ["file_kills", "file_rate"],
    "file_faults": ["small_kills", "full_disk", "contention", "foreign"],
    **{module: [*MODULES[module]] for module in ("alerts", "ray")},
}
"""Trials by a name for all of them."""


def run(name: str, scale: Scale) -> list[Gate]:
    """Return the gates of a trial, of which some need modules that others do without."""
    (module,) = (module for module, names in MODULES.items() if name in names)
    gates = getattr(importlib.import_module(f"trials.{module}"), name)(scale)
    found: list[Gate] = asyncio.run(gates) if inspect.iscoroutine(gates) else gates
    return found


def main() -> int:
    """Run the trials that the command line names."""
    names = [name for names in MODULES.values() for name in names]
    parser = argparse.ArgumentParser(
        prog="python -m trials", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = [*GROUPS, *names]
    parser.add_argument(
        "trials", nargs="+", choices=choices, metavar="TRIAL", help=", ".join(choices)
    )
    parser.add_argument("--short", action="store_true", help="run at the scale of the tests")
    parser.add_argument("--json", type=Path, help="file for the gates")
    options = parser.parse_args()
    scale = Scale.SHORT if options.short else Scale.FULL
    gates = []
    for name in [name for given in options.trials for name in GROUPS.get(given, [given])]:
        found = run(name, scale)
        print(f"\n{name}\n\n{table(found)}", flush=True)
        gates += found
    if options.json:
        content = {"scale": scale.value, "gates": [asdict(gate) for gate in gates]}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if all(gate.passed for gate in gates) else 1


if __name__ == "__main__":
    sys.exit(main())
