"""Tables and JSON; a run of several steps prints and writes its figures as they come."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Figure

Cells = Sequence[object]


def markdown(heads: Cells, rows: Iterable[Cells]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def write_json(path: Path, content: object) -> None:
    """Write JSON atomically: the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")
    part.replace(path)


@dataclass
class Step:
    """Figures of one step, and how the step ended."""

    figures: list[Figure] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None
    """Type and message of the exception that ended the step."""
    complete: bool = False


class Report:
    """Figures of all steps; an interrupted run keeps its figures."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self._path = path
        self._about = about
        self.steps: dict[str, Step] = {}

    @property
    def failed(self) -> bool:
        """Whether any step ended in an error."""
        return any(step.error for step in self.steps.values())

    def run(self, name: str, figures: Iterator[Figure]) -> bool:
        """Take a step's figures one by one; return whether the step completed."""
        print(f"\n{name}", flush=True)
        step = self.steps[name] = Step()
        started = time.perf_counter()
        try:
            for figure in figures:
                step.figures.append(figure)
                print("  " + "  ".join(filter(None, figure.cells)), flush=True)
                step.seconds = time.perf_counter() - started
                self.write()
        except Exception as error:  # a failed step must not discard the figures of other steps
            traceback.print_exc()
            step.error = f"{type(error).__name__}: {' '.join(str(error).split())}"
            print(f"  FAILED: {step.error}", flush=True)
        step.seconds = time.perf_counter() - started
        step.complete = step.error is None
        self.write()
        return step.complete

    def write(self) -> None:
        if self._path is not None:
            write_json(self._path, self.content())

    def content(self) -> dict[str, Any]:
        """Return the report as JSON's values."""
        steps = {
            name: {
                "complete": step.complete,
                "error": step.error,
                "seconds": round(step.seconds, 3),
                "figures": [figure.content() for figure in step.figures],
            }
            for name, step in self.steps.items()
        }
        return {**self._about, "steps": steps}

    def table(self) -> str:
        """Return a Markdown table, a row a figure."""
        rows = []
        for name, step in self.steps.items():
            rows += [figure.cells for figure in step.figures]
            if step.error:
                rows.append((name, "FAILED", "", step.error))
        return markdown(("figure", "value", "goal", ""), rows)
