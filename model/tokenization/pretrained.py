"""Tokenizers that transformers builds from a checkpoint's files, without its code and the hub.

Their class is chosen as by `AutoTokenizer`, which is not called itself, because it would load
whatever class of transformers a checkpoint names, models included.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from transformers import PreTrainedTokenizer, PreTrainedTokenizerBase, TokenizersBackend
from transformers.models.auto.tokenization_auto import (
    MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
    TOKENIZER_MAPPING_NAMES,
    tokenizer_class_from_name,
)
from transformers.utils import logging

from model.errors import CheckpointError
from model.tokenization.files import READ_AS_THEY_ARE, Settings, TokenizerFiles, read_json

AS_STORED = "TokenizersBackend"
"""Class of a tokenizer that consists of its tokenizer.json."""
OF_PIECES = frozenset({"MarianTokenizer", "M2M100Tokenizer"})
"""Classes whose texts SentencePiece segments. transformers has no fast tokenizer for them."""

_OF_TOWERS = {"clip_text_model": "clip", "siglip_text_model": "siglip"}
"""`model_type` of a text tower → `model_type` of the whole model, by which transformers chooses."""


def class_name(files: TokenizerFiles) -> str:
    """Return the name of the class of a checkpoint's tokenizer, without a final "Fast"."""
    declared = files.settings.get("tokenizer_class")
    named = declared or files.config.get("tokenizer_class")
    if named is not None and not isinstance(named, str):
        raise CheckpointError(f"{files.folder}: tokenizer_class is {named!r}, not a name")
    model_type = str(files.config.get("model_type"))
    model_type = _OF_TOWERS.get(model_type, model_type)
    default = TOKENIZER_MAPPING_NAMES.get(model_type)
    default = default and _plain(default)
    own_code = _names_own_code(files)
    if own_code and not default and (not declared or _find(declared) is None):
        raise CheckpointError(
            f"{files.folder} has a tokenizer that is code of its own (auto_map), which is not run; "
            "where its tokenizer.json is whole, set tokenizer_class to PreTrainedTokenizerFast in "
            "tokenizer_config.json"
        )
    if not own_code and named and default and _plain(named) != default:
        overruling = not MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS.isdisjoint(
            {model_type, str(files.config.get("model_name"))}
        )
        named = default if default == AS_STORED or overruling else named
    elif not declared and named and _find(named) is None:
        raise CheckpointError(
            f"{files.folder}: config.json names a tokenizer_class {named}, which transformers does "
            "not have; set it to PreTrainedTokenizerFast if tokenizer.json is whole"
        )
    if not (named or default):
        raise CheckpointError(
            f"{files.folder} names no tokenizer_class; set one in tokenizer_config.json "
            "(PreTrainedTokenizerFast takes tokenizer.json as it stands)"
        )
    name = _plain(str(named or default))
    # Llama's class has no byte-level words, but some checkpoints that name it do
    return AS_STORED if name == "LlamaTokenizer" and files.has_byte_level else name


def backend_class(files: TokenizerFiles, name: str) -> type[TokenizersBackend]:
    """Return transformers' class that builds a fast tokenizer.

    An unknown name stands for a tokenizer.json, as in transformers.
    """
    found = _find(name)
    if found is None:
        return TokenizersBackend
    if not (isinstance(found, type) and issubclass(found, TokenizersBackend)):
        files.require(name)
        raise CheckpointError(
            f"{files.folder}: {name} is not supported; where its tokenizer.json is whole, "
            "set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json"
        )
    return found


def input_names(files: TokenizerFiles) -> list[str]:
    """Return the model inputs that the class returns by default."""
    name = class_name(files)
    kind = PreTrainedTokenizerBase if name in OF_PIECES else backend_class(files, name)
    return list(kind.model_input_names)


def _find(name: str) -> object | None:
    """Return what transformers has under a name; None for nothing, and for its base class."""
    try:
        found: object | None = tokenizer_class_from_name(name)
    except Exception:  # a package is missing that only this class needs
        return name
    return TokenizersBackend if found is PreTrainedTokenizer else found


def _names_own_code(files: TokenizerFiles) -> bool:
    names = files.settings.get("auto_map")
    return bool(names.get("AutoTokenizer") if isinstance(names, dict) else names)


def _plain(name: str) -> str:
    return name.removesuffix("Fast")


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
