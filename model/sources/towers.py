"""Towers of a CLIP or SigLIP checkpoint, as folders of links that look like one tower each.

All readers of checkpoints then read one format: transformers' `CLIPTextModelWithProjection`,
`CLIPVisionModelWithProjection`, `SiglipTextModel` and `SiglipVisionModel`. An image classifier with
a vision tower has that tower alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from model.artifact.modules import listed_modules, read_object, transformer_folder
from model.errors import ConfigError

Tower = Literal["text", "vision"]
CONFIG = "config.json"
_KINDS = {"clip": "CLIP", "siglip": "Siglip"}
"""`model_type` of a checkpoint with two towers → beginning of transformers' names."""
_CLASSIFIER = "ForImageClassification"
_LABELS = ("id2label", "num_labels", "problem_type")


def towers(config: Mapping[str, Any]) -> dict[Tower, dict[str, Any]]:
    """Return the `config.json` of each tower; empty unless it has towers.

    Args:
        config: content of a `config.json`.

    Raises:
        ConfigError: the config of a tower is missing, or the architecture is not supported.

    """
    kind = str(config.get("model_type"))
    if kind not in _KINDS:
        return {}
    name = _KINDS[kind]
    architecture = str((config.get("architectures") or [f"{name}Model"])[0])
    if architecture == f"{name}{_CLASSIFIER}":
        labels = {key: config[key] for key in _LABELS if key in config}
        return {"vision": _tower(config, kind, "vision") | labels | _named(architecture)}
    if architecture != f"{name}Model":
        raise ConfigError(
            f"config.json: the architecture {architecture} is not supported: {name}Model and "
            f"{name}{_CLASSIFIER} are"
        )
    projection = "WithProjection" if kind == "clip" else ""
    return {
        tower: _tower(config, kind, tower) | _named(f"{name}{tower.title()}Model{projection}")
        for tower in ("text", "vision")
    }


def split(checkpoint: Path, folders: Path) -> dict[Tower, Path]:
    """Write a folder for each tower of a checkpoint, and return them; empty without towers.

    Args:
        checkpoint: a Hugging Face folder, with or without sentence-transformers' files.
        folders: an empty folder, the parent of the new ones.

    Raises:
        ConfigError: as for `towers`; or a file cannot be read.

    """
    inside = transformer_folder(checkpoint)
    configs = towers(read_object(inside / CONFIG))
    own = [entry.folder for entry in listed_modules(checkpoint) or () if entry.folder != checkpoint]
    made = {}
    for tower, config in configs.items():
        folder = folders / tower
        _link(checkpoint, folder)
        for module in own:
            _link(module, folder / module.name)
        described = folder / inside.relative_to(checkpoint) / CONFIG
        described.unlink()
        described.write_text(json.dumps(config), encoding="utf-8")
        made[tower] = folder
    return made


def _link(source: Path, folder: Path) -> None:
    """Make a folder of links to the files of a folder."""
    folder.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path.resolve())


def _tower(config: Mapping[str, Any], kind: str, tower: Tower) -> dict[str, Any]:
    """Return the config of a tower, which old checkpoints hold in full under another key."""
    own = config.get(f"{tower}_config_dict") or config.get(f"{tower}_config")
    if not isinstance(own, dict):
        raise ConfigError(f"config.json: {tower}_config is missing")
    size = {"projection_dim": config.get("projection_dim") or 512} if kind == "clip" else {}
    return own | size | {"model_type": f"{kind}_{tower}_model"}


def _named(architecture: str) -> dict[str, Any]:
    return {"architectures": [architecture]}
