"""Folders with a handwritten `modules.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def modules_of(*types: str) -> list[dict[str, Any]]:
    """Return the content of a `modules.json` of versions up to 5."""
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(types[1:], start=1))]
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(types, paths, strict=True))
    ]


def write_modules(folder: Path, *types: str) -> None:
    """Write the file, and a folder for each module."""
    modules = modules_of(*types)
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules:
        (folder / module["path"]).mkdir(exist_ok=True)
