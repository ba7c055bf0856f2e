"""Ids of a `vocab.json` beside a SentencePiece model, and the tokens added to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from tokenizers import AddedToken
from transformers import PreTrainedTokenizer

from model.errors import CheckpointError
from model.tokenization.files import TokenizerFiles, read_json
from model.tokenization.pretrained import from_files

_MOST_IDS = 2**24
"""Limit of ids, above any real vocabulary, because rows up to the largest id are allocated."""


class DeclaredTokens(PreTrainedTokenizer):  # type: ignore[misc]
    """Special and added tokens of a checkpoint with a vocab.json, by transformers' own rules."""

    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "vocab.json"}

    def __init__(self, vocab_file: str, **settings: Any) -> None:
        self.ids = read_ids(Path(vocab_file))
        self.given: dict[int, AddedToken] = dict(settings.get("added_tokens_decoder", {}))
        super().__init__(**settings)

    @classmethod
    def read(cls, files: TokenizerFiles, defaults: Mapping[str, str]) -> Self:
        """Read the tokens; special tokens that the files do not name have defaults."""
        by_id = {index: token for token, index in read_ids(files.folder / "vocab.json").items()}
        declared = from_files(cls, files, defaults)
        for index, token in declared.given.items():
            known = by_id.get(index, token.content)
            if known != token.content and known in declared.all_special_tokens:
                raise CheckpointError(
                    f"{files.folder}: tokenizer_config.json gives {token.content} the id {index}, "
                    f"which vocab.json gives {known}"
                )
        return declared

    @property
    def vocab_size(self) -> int:
        """Number of ids without added tokens."""
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        """Return all ids."""
        return {**self.ids, **self.added_tokens_encoder}


@dataclass(frozen=True)
class Vocabulary:
    """Ids of tokens, and the tokens that are not pieces."""

    ids: Mapping[str, int]
    """Ids of all tokens."""
    unknown: str
    """Token for unknown text."""
    added: Sequence[AddedToken]
    """Tokens that are matched as a whole anywhere in a text."""
    codes: Collection[str] | None = None
    """Known codes such as `>>fra<<`, which are tokens only at the start of a text; there, any other
    text up to the first `<<` is the unknown token. None if the class has no codes."""

    @property
    def whole(self) -> set[str]:
        """Tokens of texts that are not pieces."""
        return {self.unknown, *(token.content for token in self.added), *(self.codes or ())}

    def with_ids(self, ids: Mapping[str, int]) -> Self:
        """Return the vocabulary with other ids."""
        return replace(self, ids=ids)


def read_ids(path: Path) -> dict[str, int]:
    """Read the ids of a file such as `vocab.json`."""
    ids = read_json(path)
    if not all(isinstance(index, int) and 0 <= index < _MOST_IDS for index in ids.values()):
        raise CheckpointError(f"{path} does not hold ids of tokens")
    if len(set(ids.values())) < len(ids):
        raise CheckpointError(f"{path} gives two tokens one id")
    return ids


def vocabulary_of(folder: Path, declared: DeclaredTokens) -> Vocabulary:
    """Return a vocabulary with a checkpoint's added and special tokens.

    They are matched in the text before normalisation.
    """
    unknown = str(declared.unk_token)
    if unknown not in declared.ids:
        raise CheckpointError(
            f"{folder}: the tokenizer's vocabulary lacks {unknown}, its unknown token"
        )
    special = set(declared.all_special_tokens)
    tokens = declared.added_tokens_decoder
    added = [_as_given(token, special=token.content in special) for token in tokens.values()]
    ids = declared.ids | {token.content: index for index, token in tokens.items()}
    return Vocabulary(ids, unknown, added)


def _as_given(token: AddedToken, *, special: bool) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=token.special or special,
    )
