"""Folders with a handwritten `modules.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.model.checkpoints import edit_json


def modules_of(*kinds: str, first: str = "") -> list[dict[str, Any]]:
    """Return the content of a `modules.json` of versions up to 5; a kind may have its package.

    `first` is the folder of the first module.
    """
    return [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind.rpartition('.')[2]}" if i else first,
            "type": kind if "." in kind else f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]


def write_modules(
    folder: Path, *kinds: str, first: str = "", **configs: dict[str, Any] | None
) -> None:
    """Write the file, a folder for each module, and the `config.json` of modules by their kind."""
    modules = modules_of(*kinds, first=first)
    (folder / "modules.json").write_text(json.dumps(modules))
    for kind, module in zip(kinds, modules, strict=True):
        (folder / module["path"]).mkdir(exist_ok=True)
        if config := configs.get(kind.rpartition(".")[2]):
            edit_json(folder / module["path"] / "config.json", **config)
