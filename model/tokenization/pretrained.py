"""Tokenizers that transformers builds from a checkpoint's files, without its code and the hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from model.errors import CheckpointError
from model.tokenization.files import READ_AS_THEY_ARE, Settings, TokenizerFiles, read_json

_ARGUMENTS = frozenset({
    "backend", "chat_template", "fix_mistral_regex", "is_local", "local_files_only", "merges",
    "name_or_path", "post_processor", "token", "tokenizer_object", "tokenizer_padding",
    "tokenizer_truncation", "trust_remote_code", "verbose", "vocab",
})  # fmt: skip
"""Settings that transformers would take as arguments: paths to read, and switches of its own."""
_SPECIAL = ("extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens")
"""Settings that list special tokens."""
MOST_COMPARISONS = 2**24
"""Maximum number of pairs of a special and an added token. transformers compares all of them, which
takes up to 1 µs a pair."""
Kind = TypeVar("Kind", bound=PreTrainedTokenizerBase)


def from_files(
    kind: type[Kind], files: TokenizerFiles, defaults: Mapping[str, str] | None = None
) -> Kind:
    """Return transformers' tokenizer of a class.

    transformers gets copies of the vocabulary and of the settings, because settings such as
    `vocab_file` may name any file of the machine.
    """
    special = read_json(files.folder / "special_tokens_map.json")
    added = read_json(files.folder / "added_tokens.json")
    _check_tokens(files, special, added)
    logging.set_verbosity_error()
    with TemporaryDirectory() as copy:
        folder = Path(copy)
        for name in ("tokenizer.json", *READ_AS_THEY_ARE):
            if (files.folder / name).is_file():
                shutil.copyfile(files.folder / name, folder / name)
        for name, content in (
            ("added_tokens.json", added),
            ("special_tokens_map.json", _harmless(special)),
            ("tokenizer_config.json", _harmless({**(defaults or {}), **files.settings})),
        ):
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _check_tokens(files: TokenizerFiles, special: Settings, added: Settings) -> None:
    """Raise an error for more special tokens than transformers can compare with all tokens."""
    lists = [content.get(name) for content in (files.settings, special) for name in _SPECIAL]
    named = sum(name.endswith("_token") for name in (*files.settings, *special))
    count = named + sum(len(tokens) for tokens in lists if isinstance(tokens, list | dict))
    others = (files.settings.get("added_tokens_decoder"), (files.stored or {}).get("added_tokens"))
    all_tokens = count + len(added)
    all_tokens += sum(len(tokens) for tokens in others if isinstance(tokens, list | dict))
    if count * all_tokens > MOST_COMPARISONS:
        raise CheckpointError(
            f"{files.folder}: {count} special tokens among {all_tokens} added tokens are too many "
            f"(their product may be {MOST_COMPARISONS}): remove extra_special_tokens from "
            "tokenizer_config.json"
        )


def _harmless(settings: Settings) -> Settings:
    return {
        name: value
        for name, value in settings.items()
        if name not in _ARGUMENTS and not name.startswith("_") and not name.endswith("_file")
    }
