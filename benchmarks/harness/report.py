"""Tables and JSON; of a run of several suites, printed and written as its figures come."""

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
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def write_json(path: Path, content: object) -> None:
    """Written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")
    part.replace(path)


@dataclass
class Step:
    """What one step found, and how it ended."""

    figures: list[Figure] = field(default_factory=list)
    seconds: float = 0.0
    error: str | None = None
    """Why it did not end well."""
    complete: bool = False


class Report:
    """All steps; a run that is cut off leaves behind what it had."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self._path = path
        self._about = about
        self.steps: dict[str, Step] = {}

    @property
    def failed(self) -> bool:
        """Whether any step ended in an error."""
        return any(step.error for step in self.steps.values())

    def run(self, name: str, figures: Iterator[Figure]) -> bool:
        """Take a step's figures one by one; tells whether it came to its end."""
        print(f"\n{name}", flush=True)
        step = self.steps[name] = Step()
        started = time.perf_counter()
        try:
            for figure in figures:
                step.figures.append(figure)
                print("  " + "  ".join(filter(None, figure.cells)), flush=True)
                step.seconds = time.perf_counter() - started
                self.write()
        except Exception as error:  # a step that fails must not take the others' figures with it
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
        """For JSON."""
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
        """Markdown, a line a figure."""
        rows = []
        for name, step in self.steps.items():
            rows += [figure.cells for figure in step.figures]
            if step.error:
                rows.append((name, "FAILED", "", step.error))
        return markdown(("figure", "value", "goal", ""), rows)
