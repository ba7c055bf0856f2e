"""Files of a checkpoint that make up its tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from model.config.files import read_object
from model.errors import CheckpointError, ConfigError
from model.tokenization.growth import check_growth

Settings = dict[str, Any]
Side = Literal["source", "target"]
"""Side of an encoder–decoder: the texts it reads, or the texts it writes."""

READ_AS_THEY_ARE = {"vocab.txt", "vocab.json", "merges.txt"}
"""Vocabulary files that replace a tokenizer.json."""
_CONVERTED = re.compile(r"tekken\.json|tiktoken\.model|tokenizer\.model")
"""Names that transformers converts for any class without a tokenizer.json."""


@dataclass(frozen=True)
class TokenizerFiles:
    """Contents of a folder's files; a missing file is empty."""

    folder: Path
    config: Settings
    """Content of `config.json`."""
    settings: Settings
    """Content of `tokenizer_config.json`."""
    stored: Settings | None
    """Content of `tokenizer.json`; None without that file."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read all files."""
        settings = read_json(folder / "tokenizer_config.json")
        versions = settings.get("fast_tokenizer_files", [])
        if any(name != "tokenizer.json" for name in versions):
            raise CheckpointError(
                f"{folder}: tokenizer_config.json names {versions} as its fast_tokenizer_files; "
                "save the tokenizer with transformers once, as one tokenizer.json"
            )
        stored = folder / "tokenizer.json"
        return cls(
            folder,
            read_json(folder / "config.json"),
            settings,
            _stored(stored) if stored.is_file() else None,
        )

    @property
    def has_byte_level(self) -> bool:
        """Whether tokenizer.json turns text into bytes, as transformers finds out."""
        return self.stored is not None and '"ByteLevel"' in json.dumps(self.stored)

    def require(self, name: str, vocabulary_files: Iterable[str] = ()) -> None:
        """Check that there is a tokenizer.json, or the vocabulary files that replace it."""
        if self.stored is not None:
            return
        required = [name for name in vocabulary_files if name != "tokenizer.json"]
        readable = bool(required) and READ_AS_THEY_ARE.issuperset(required)
        names = sorted(path.name for path in self.folder.iterdir())
        converted = [name for name in names if _CONVERTED.search(name)]
        if readable and not converted and set(required) <= set(names):
            return
        models = converted or [name for name in names if name.endswith(".model")]
        if models:
            raise CheckpointError(
                f"{self.folder} holds its tokenizer as {models[0]} only; save it with transformers "
                "once (AutoTokenizer.from_pretrained, save_pretrained), which writes tokenizer.json"
            )
        if readable:
            raise CheckpointError(
                f"{self.folder} holds neither tokenizer.json nor {' and '.join(required)}"
            )
        raise CheckpointError(f"{self.folder} holds no tokenizer.json, which a {name} needs")

    def require_all(self, files: tuple[str, ...]) -> None:
        """Check that all given files exist."""
        missing = [name for name in files if not (self.folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{self.folder} holds no whole tokenizer: {' and '.join(missing)} missing"
            )


def read_json(path: Path) -> Settings:
    """Return the object in a JSON file; empty without that file."""
    try:
        return read_object(path)
    except ConfigError as error:
        raise CheckpointError(str(error)) from None


def _stored(path: Path) -> Settings:
    try:
        content = read_json(path)
    except CheckpointError as error:
        raise CheckpointError(f"{path.parent} holds no readable tokenizer: {error}") from None
    missing = {"added_tokens", "model"} - content.keys()
    if missing:
        raise CheckpointError(
            f"{path.parent} holds no readable tokenizer: tokenizer.json lacks "
            + " and ".join(sorted(missing))
        )
    check_growth(str(path), content)
    return content
