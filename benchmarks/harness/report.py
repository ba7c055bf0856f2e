"""Tables and JSON of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

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
