"""Files of a reranker that scores pairs by the logits of one or two words. Without torch.

Format: sentence-transformers' cross-encoder of the modules Transformer → LogitScore, such as
Qwen3-Reranker (Zhang et al. 2025, https://arxiv.org/abs/2506.05176). A score is the logit of the
word for true at the text's last token, minus the logit of the word for false if there is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from model.artifact.modules import ModuleEntry, listed_modules, read_object, transformer_folder
from model.artifact.sentence_files import refuse_unknown
from model.errors import ConfigError

CHAT_TEMPLATE = "chat_template.jinja"
LOGIT_SCORE = "LogitScore"
_MESSAGES = "message"
_INPUT = "causal_logits"

MessageFormat = Literal["flat", "structured"]
"""Content of a message of the chat template: a string, or a list of typed parts."""


class LogitScore(BaseModel):
    """Words of a reranker's score, and the form of its chat template's messages."""

    model_config = ConfigDict(frozen=True)

    true_token_id: NonNegativeInt
    false_token_id: NonNegativeInt | None = None
    """Token id of the word for false; None if the score is the logit of the word for true."""
    chat_template: str | None = None
    """Chat template around each pair; None if the tokenizer joins both texts."""
    message_format: MessageFormat = "flat"


def is_logit_score(modules: list[ModuleEntry]) -> bool:
    """Return whether the modules score pairs by logits of words."""
    return [module.kind for module in modules] == ["Transformer", LOGIT_SCORE]


def read_logit_score(folder: Path) -> LogitScore | None:
    """Read the files of a reranker by logits; None for any other checkpoint."""
    modules = listed_modules(folder)
    if modules is None or not is_logit_score(modules):
        return None
    content = read_object(path := modules[1].folder / "config.json")
    refuse_unknown(path, content, {*LogitScore.model_fields, "module_input_name"})
    if content.get("module_input_name", _INPUT) != _INPUT:
        named = content["module_input_name"]
        raise ConfigError(f"{path}: module_input_name {named!r} is not supported; {_INPUT!r} is")
    words = {key: content.get(key) for key in ("true_token_id", "false_token_id")}
    try:
        return LogitScore(**words, **_chat(transformer_folder(folder)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where}: {first['msg']}") from None


def _chat(folder: Path) -> dict[str, Any]:
    """Return the chat template and the form of its messages, if the model reads messages."""
    content = read_object(path := folder / "sentence_bert_config.json")
    modalities = content.get("modality_config")
    if modalities is None:
        return {"chat_template": _chat_template(folder)}
    if not isinstance(modalities, dict):
        raise ConfigError(f"{path}: modality_config is not a JSON object")
    if _MESSAGES not in modalities:
        return {}
    template = _chat_template(folder)
    if template is None:
        raise ConfigError(f"{path} names messages, and {folder} holds no {CHAT_TEMPLATE}")
    settings = modalities[_MESSAGES]
    form = settings.get("format", "flat") if isinstance(settings, dict) else settings
    return {"chat_template": template, "message_format": form}


def _chat_template(folder: Path) -> str | None:
    """Return the default chat template of a tokenizer's files; None without one."""
    if (path := folder / CHAT_TEMPLATE).is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is not readable text: {error}") from None
    path = folder / "tokenizer_config.json"
    stored = read_object(path).get("chat_template")
    if stored is None or isinstance(stored, str):
        return stored
    raise ConfigError(f"{path}: several chat templates are not supported; {CHAT_TEMPLATE} is")
