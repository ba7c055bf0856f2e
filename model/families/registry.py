"""The families by `model_type`, and the reading of a checkpoint's `config.json` through them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from model.config import EncoderConfig
from model.errors import ConfigError
from model.families.albert import ALBERT
from model.families.bert import BERT
from model.families.deberta_v2 import DEBERTA_V2
from model.families.distilbert import DISTILBERT
from model.families.electra import ELECTRA
from model.families.family import Family
from model.families.gemma3 import GEMMA3
from model.families.modernbert import MODERNBERT
from model.families.mpnet import MPNET
from model.families.nomic_bert import NOMIC_BERT
from model.families.qwen3 import QWEN3
from model.families.roberta import ROBERTA

_LAYOUTS = ("embeddings", "attention", "layer")
"""Names of our own, which a `config.json` cannot set."""
FAMILIES: Mapping[str, Family] = {
    "albert": ALBERT,
    "bert": BERT,
    "camembert": ROBERTA,
    "deberta-v2": DEBERTA_V2,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "gemma3_text": GEMMA3,
    "modernbert": MODERNBERT,
    "mpnet": MPNET,
    "nomic_bert": NOMIC_BERT,
    "qwen3": QWEN3,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
}


def read_config(folder: Path) -> EncoderConfig:
    """The encoder's configuration from `config.json` of a Hugging Face checkpoint folder.

    Raises:
        ConfigError: the file is missing, not JSON, or describes something unsupported.

    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no config.json")
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
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
        return family.config({k: v for k, v in fields.items() if k not in _LAYOUTS})
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
