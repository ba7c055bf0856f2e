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

from model.tokenization.files import READ_AS_THEY_ARE, Settings, TokenizerFiles, read_json

_ARGUMENTS = frozenset({
    "backend", "chat_template", "fix_mistral_regex", "is_local", "local_files_only", "merges",
    "name_or_path", "post_processor", "token", "tokenizer_object", "tokenizer_padding",
    "tokenizer_truncation", "trust_remote_code", "verbose", "vocab",
})  # fmt: skip
"""Settings that transformers would take as arguments: paths to read, and switches of its own."""
Kind = TypeVar("Kind", bound=PreTrainedTokenizerBase)


def from_files(
    kind: type[Kind], files: TokenizerFiles, defaults: Mapping[str, str] | None = None
) -> Kind:
    """Return transformers' tokenizer of a class.

    transformers gets copies of the vocabulary and of the settings, because settings such as
    `vocab_file` may name any file of the machine.

    Args:
        kind: class of the tokenizer.
        files: files of the checkpoint.
        defaults: settings where the files have none.

    Raises:
        Exception: the files are damaged; transformers raises errors of many types.

    """
    logging.set_verbosity_error()
    with TemporaryDirectory() as copy:
        folder = Path(copy)
        for name in ("tokenizer.json", *READ_AS_THEY_ARE):
            if (files.folder / name).is_file():
                shutil.copyfile(files.folder / name, folder / name)
        for name in ("special_tokens_map.json", "added_tokens.json"):
            _write(folder / name, _harmless(read_json(files.folder / name)))
        _write(folder / "tokenizer_config.json", _harmless({**(defaults or {}), **files.settings}))
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _write(path: Path, settings: Settings) -> None:
    path.write_text(json.dumps(settings), encoding="utf-8")


def _harmless(settings: Settings) -> Settings:
    return {
        name: value
        for name, value in settings.items()
        if name not in _ARGUMENTS and not name.startswith("_") and not name.endswith("_file")
    }
