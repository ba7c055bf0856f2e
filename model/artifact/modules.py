"""Modules that a sentence-transformers folder lists in its `modules.json`. Without torch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import ConfigError
from model.families.jina_tasks import is_jina_v3

MODULES = "modules.json"
STATIC_EMBEDDING = "StaticEmbedding"
_TRANSFORMERS = ("Transformer", "MLMTransformer", "CLIPModel")
_OF_TASKS = "custom_st.Transformer"
"""Module of jina-embeddings-v3's published folder: a Transformer that takes the name of a task."""


@dataclass(frozen=True, slots=True)
class ModuleEntry:
    """Module and its folder."""

    kind: str
    """Name of its class, with the package unless it is sentence-transformers."""
    folder: Path


def listed_modules(folder: Path) -> list[ModuleEntry] | None:
    """Return the modules of a checkpoint in their order; None without `modules.json`."""
    path = folder / MODULES
    if not path.is_file():
        return None
    entries = read_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path} is not a list of modules")
    modules = []
    for entry in entries:
        name, kind = str(entry.get("path") or ""), str(entry.get("type") or "")
        name = "" if name == "." else name  # as model2vec writes it
        if Path(name).name != name.rstrip("/") or Path(name).name == "..":
            raise ConfigError(f"{path} names {name}, which is not a folder beside it")
        # releases of sentence-transformers have moved classes between packages
        kind = re.sub(r"^sentence_transformers\.(.*\.)?", "", kind)
        if kind == _OF_TASKS and is_jina_v3(read_object(folder / name / "config.json")):
            kind = "Transformer"
        modules.append(ModuleEntry(kind, folder / name))
    return modules


def is_static(folder: Path) -> bool:
    """Return whether a checkpoint is a static embedding: a table of one vector a token.

    Raises:
        ConfigError: `modules.json` cannot be read.

    """
    modules = listed_modules(folder) or []
    return [module.kind for module in modules[:1]] == [STATIC_EMBEDDING]


def transformer_folder(folder: Path) -> Path:
    """Return the folder of a checkpoint's config, weights and tokenizer.

    It is the checkpoint folder itself, or a Transformer module's own folder in `modules.json`.
    """
    modules = listed_modules(folder)
    return modules[0].folder if modules and modules[0].kind in _TRANSFORMERS else folder


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not readable JSON: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if the file does not exist."""
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return content
