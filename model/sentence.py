"""What a checkpoint's sentence-transformers files say: pooling, normalisation, limit, prompts.

Formats: sentence-transformers' `modules.json`, `sentence_bert_config.json`, the pooling
module's `config.json` (the boolean keys of versions up to 5, the `pooling_mode` of later ones)
and `config_sentence_transformers.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from model.errors import ConfigError
from model.pooling import POOLINGS, PoolingName

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
    """How a text becomes one vector, by the checkpoint's own account."""

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
        """Read what is there; sentence-transformers' defaults stand for what is not.

        Args:
            folder: a checkpoint folder, with sentence-transformers files or without.
            max_position_embeddings: the position table's size, which bounds the length.

        Raises:
            ConfigError: a file is invalid, or asks for something that is not supported.

        """
        transformer = _read(folder / "sentence_bert_config.json")
        names = _read(folder / "config_sentence_transformers.json")
        tokenizer = _read(folder / "tokenizer_config.json")
        limits = [
            max_position_embeddings,
            transformer.get("max_seq_length") or tokenizer.get("model_max_length"),
        ]
        pooling, include_prompt, normalize = _modules(folder)
        try:
            return cls(
                pooling=pooling,
                normalize=normalize,
                max_length=min(int(limit) for limit in limits if limit),
                prompts=names.get("prompts") or {},
                include_prompt=include_prompt,
                lowercase=transformer.get("do_lower_case", False),
            )
        except (ValueError, TypeError) as error:
            reason = str(error).splitlines()[-1].strip()
            raise ConfigError(f"{folder}: invalid sentence-transformers files: {reason}") from None


def _modules(folder: Path) -> tuple[PoolingName, bool, bool]:
    path = folder / "modules.json"
    if not path.is_file():
        return "mean", True, False
    modules = _parse(path)
    if not isinstance(modules, list) or not all(isinstance(item, dict) for item in modules):
        raise ConfigError(f"{path} is not a list of modules")
    kinds = [str(item.get("type", "")).rsplit(".", 1)[-1] for item in modules]
    if kinds not in (
        ["Transformer"],
        ["Transformer", "Pooling"],
        ["Transformer", "Pooling", "Normalize"],
    ):
        raise ConfigError(
            f"{path}: the modules {' → '.join(kinds)} are not supported; "
            "Transformer → Pooling → Normalize are"
        )
    if "Pooling" not in kinds:
        return "mean", True, False
    pooling = _read(folder / str(modules[1].get("path", "")) / "config.json")
    return _pooling(path, pooling), bool(pooling.get("include_prompt", True)), len(kinds) == 3


def _pooling(path: Path, config: dict[str, Any]) -> PoolingName:
    named = config.get("pooling_mode")
    if named is None:
        named = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)] or ["mean"]
    modes = [named] if isinstance(named, str) else list(named)
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
