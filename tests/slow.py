"""Tests that `make check` skips because they are slow, and the command that lists them.

To list them anew, on two cores that do nothing else: empty `tests/slow.txt`, then run
`python -m pytest --numprocesses 2 --dist loadfile -m "not e2e and not slow" --junit-xml FILE` and
`python -m tests.slow FILE`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree as ET

LIST = Path(__file__).with_name("slow.txt")
LEAST_SECONDS = 0.05
"""Minimum mean seconds of a listed test over its parameters, fixtures included."""


def listed() -> frozenset[str]:
    """Return the slow tests, each as `tests/folder/test_file.py::test_name`."""
    return frozenset(LIST.read_text(encoding="utf-8").split())


def slow_tests(report: Path) -> list[str]:
    """Return the slow tests of a JUnit report, sorted by name."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        file = case.attrib["classname"].replace(".", "/") + ".py"
        seconds[f"{file}::{name}"].append(float(case.attrib["time"]))
    return sorted(test for test, taken in seconds.items() if fmean(taken) >= LEAST_SECONDS)


if __name__ == "__main__":
    LIST.write_text("".join(f"{test}\n" for test in slow_tests(Path(sys.argv[1]))), "utf-8")
