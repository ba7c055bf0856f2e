"""The modules that a sentence-transformers folder lists in its `modules.json`. Without torch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import ConfigError

MODULES = "modules.json"
_TRANSFORMERS = ("Transformer", "MLMTransformer")


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """One module and where its files are."""

    kind: str
    """Name of its class; with its package, where that is not sentence-transformers."""
    folder: Path


def listed_modules(folder: Path) -> list[ModuleEntry] | None:
    """The modules of a checkpoint in their order; None for one without `modules.json`.

    Raises:
        ConfigError: the file is not a list of modules, or names a folder outside the checkpoint.

    """
    path = folder / MODULES
    if not path.is_file():
        return None
    entries = read_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path} is not a list of modules")
    modules = []
    for entry in entries:
        name, kind = str(entry.get("path") or ""), str(entry.get("type") or "")
        if Path(name).name != name.rstrip("/") or Path(name).name == "..":
            raise ConfigError(f"{path} names {name}, which is not a folder beside it")
        # every release has moved some of the classes to another package
        kind = re.sub(r"^sentence_transformers\.(.*\.)?", "", kind)
        modules.append(ModuleEntry(kind, folder / name))
    return modules


def transformer_folder(folder: Path) -> Path:
    """Where the config, the weights and the tokenizer of a checkpoint are.

    The folder itself, or that of a Transformer module which `modules.json` keeps in one of its own.

    Raises:
        ConfigError: `modules.json` cannot be read.

    """
    modules = listed_modules(folder)
    return modules[0].folder if modules and modules[0].kind in _TRANSFORMERS else folder


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ConfigError: it cannot be read.

    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not readable JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """The content of a file with a JSON object; nothing where there is no such file.

    Raises:
        ConfigError: it cannot be read, or holds something else.

    """
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return content
