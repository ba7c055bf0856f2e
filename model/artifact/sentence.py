"""A checkpoint's sentence-transformers files: pooling, normalisation, length limit, prompts.

Formats: sentence-transformers' `modules.json`, `sentence_bert_config.json`, the pooling
module's `config.json` (the boolean keys of versions up to 5, the `pooling_mode` of later ones)
and `config_sentence_transformers.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model.artifact.pooling import POOLINGS, PoolingName
from model.artifact.task import task_kind
from model.errors import ConfigError

_POOLING_NAMES: dict[str, PoolingName] = {
    "mean": "mean",
    "cls": "cls",
    "max": "max",
    "lasttoken": "last",
}
_POOLING_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


class SentenceConfig(BaseModel):
    """Pooling, normalisation, limit and prompts of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pooling: PoolingName = "mean"
    normalize: bool = False
    max_length: int = Field(gt=0)
    """The most tokens of one input, special tokens included."""
    prompts: dict[str, str] = {}
    include_prompt: bool = True
    """Whether pooling counts the tokens of a prompt."""
    lowercase: bool = False
    """Whether a text is lower-cased before it is tokenised."""

    @classmethod
    def from_checkpoint(cls, folder: Path, max_position_embeddings: int) -> SentenceConfig:
        """Read the files; sentence-transformers' defaults stand for those that are absent.

        Args:
            folder: a checkpoint folder, with sentence-transformers files or without.
            max_position_embeddings: the position table's size, which bounds the length.

        Raises:
            ConfigError: a file is invalid, or asks for something that is not supported.

        """
        tokenizer = _read(folder / "tokenizer_config.json")
        limit = tokenizer.get("model_max_length", tokenizer.get("max_len"))
        fields: dict[str, Any] = {}
        if (folder / "modules.json").is_file():  # without it, the other files do not count
            transformer = _read(folder / "sentence_bert_config.json")
            if transformer.get("max_seq_length") is not None:
                limit = transformer["max_seq_length"]
            own = {} if task_kind(folder) else _modules(folder)
            fields = own | {
                "lowercase": transformer.get("do_lower_case", False),
                "prompts": _prompts(folder / "config_sentence_transformers.json"),
            }
        if limit is None:
            limit = max_position_embeddings
        elif not isinstance(limit, int | float):
            raise ConfigError(f"{folder}: the limit on a text's tokens is {limit!r}, not a number")
        try:
            return cls(max_length=min(limit, max_position_embeddings), **fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"{folder}: invalid sentence-transformers files: {where}: {first['msg']}"
            ) from None


def _prompts(path: Path) -> Any:
    prompts = _read(path).get("prompts") or {}
    if isinstance(prompts, dict):  # null stands for the empty prompt
        return {name: prompt or "" for name, prompt in prompts.items()}
    return prompts


def _modules(folder: Path) -> dict[str, Any]:
    path = folder / "modules.json"
    modules = _parse(path)
    if not isinstance(modules, list) or not all(isinstance(item, dict) for item in modules):
        raise ConfigError(f"{path} is not a list of modules")
    kinds = [str(item.get("type", "")) for item in modules]
    kinds = [re.sub(r"^sentence_transformers\.(.*\.)?", "", kind) for kind in kinds]
    if kinds not in (
        ["Transformer"],
        ["Transformer", "Pooling"],
        ["Transformer", "Pooling", "Normalize"],
    ):
        raise ConfigError(
            f"{path}: the modules {' → '.join(kinds)} are not supported; "
            "Transformer → Pooling → Normalize are"
        )
    if modules[0].get("path"):
        raise ConfigError(f"{path}: the Transformer module must lie beside it, not in a folder")
    if len(kinds) == 1:
        return {}
    name = str(modules[1].get("path", ""))
    config = folder / name / "config.json"
    if Path(name).name != name or not config.is_file():
        raise ConfigError(f"{path} names {name}, which holds no config.json")
    pooling = _read(config)
    return {
        "pooling": _pooling(config, pooling),
        "include_prompt": pooling.get("include_prompt", True),
        "normalize": len(kinds) == 3,
    }


def _pooling(path: Path, config: dict[str, Any]) -> PoolingName:
    named = config.get("pooling_mode")
    if named is None:
        named = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)] or ["mean"]
    modes = named if isinstance(named, list) else [named]
    if len(modes) != 1 or modes[0] not in _POOLING_NAMES:
        raise ConfigError(
            f"{path}: pooling {' + '.join(map(str, modes))} is not supported; "
            f"one of {', '.join(POOLINGS)} is"
        )
    return _POOLING_NAMES[modes[0]]


def _read(path: Path) -> dict[str, Any]:
    content = _parse(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold a JSON object")
    return content


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable JSON: {error}") from None
