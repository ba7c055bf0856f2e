"""The families by `model_type`, and the reading of a checkpoint's `config.json` through them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from model.config import EncoderConfig
from model.errors import ConfigError
from model.families.bert import BERT
from model.families.family import Family

FAMILIES: Mapping[str, Family] = {"bert": BERT}


def read_config(folder: Path) -> EncoderConfig:
    """The encoder's configuration from `config.json` of a Hugging Face checkpoint folder.

    Raises:
        ConfigError: the file is missing, not JSON, or describes something unsupported.

    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no config.json")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return parse_config(fields)


def parse_config(fields: Mapping[str, Any]) -> EncoderConfig:
    """The encoder's configuration from the content of a `config.json`.

    Raises:
        ConfigError: a field is missing, invalid or not supported; names every one.

    """
    family = FAMILIES.get(str(fields.get("model_type")))
    if family is None:
        raise ConfigError(f"config.json is not a supported encoder: {unsupported(fields)}")
    try:
        return family.config(fields)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'config'}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        raise ConfigError(f"config.json is not a supported encoder: {problems}") from None


def unsupported(fields: Mapping[str, Any]) -> str:
    """What is said of a `config.json` whose `model_type` no family has."""
    found = (
        f"its model_type is {fields['model_type']!r}"
        if "model_type" in fields
        else ("it names no model_type")
    )
    return f"{found}; supported are {', '.join(FAMILIES)}"
