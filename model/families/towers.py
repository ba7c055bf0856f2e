"""Towers of a checkpoint of CLIP or SigLIP, by its `config.json`. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from model.errors import ConfigError

Tower = Literal["text", "vision"]
_KINDS = {"clip": "CLIP", "siglip": "Siglip"}
"""`model_type` of a checkpoint with two towers → beginning of transformers' names."""
_CLASSIFIER = "ForImageClassification"
_LABELS = ("id2label", "num_labels", "problem_type")


def towers(config: Mapping[str, Any]) -> dict[Tower, dict[str, Any]]:
    """Return the `config.json` of each tower; empty unless it has towers."""
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


def _tower(config: Mapping[str, Any], kind: str, tower: Tower) -> dict[str, Any]:
    """Return the config of a tower, which old checkpoints hold in full under another key."""
    own = config.get(f"{tower}_config_dict") or config.get(f"{tower}_config")
    if not isinstance(own, dict):
        raise ConfigError(f"config.json: {tower}_config is missing")
    size = {"projection_dim": config.get("projection_dim") or 512} if kind == "clip" else {}
    return own | size | {"model_type": f"{kind}_{tower}_model"}


def _named(architecture: str) -> dict[str, Any]:
    return {"architectures": [architecture]}
