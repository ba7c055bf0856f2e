"""Ids of a `vocab.json` beside a SentencePiece model, and the tokens added to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tokenizers import AddedToken

from model.errors import CheckpointError
from model.tokenization.files import read_json
from model.tokenization.source import Source

_MOST_IDS = 2**24
"""Limit of ids, above any real vocabulary, because rows up to the largest id are allocated."""


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
    """Read the ids of a file such as `vocab.json`.

    Raises:
        CheckpointError: the file is damaged, or two tokens have the same id.

    """
    ids = read_json(path)
    if not all(isinstance(index, int) and 0 <= index < _MOST_IDS for index in ids.values()):
        raise CheckpointError(f"{path} does not hold ids of tokens")
    if len(set(ids.values())) < len(ids):
        raise CheckpointError(f"{path} gives two tokens one id")
    return ids


def extended(source: Source, ids: Mapping[str, int]) -> Vocabulary:
    """Return a vocabulary with a checkpoint's added and special tokens.

    They are matched in the text before normalisation. New ones get the next ids, as in
    transformers' tokenizers without a tokenizer.json.

    Raises:
        CheckpointError: the vocabulary lacks the unknown token.

    """
    unknown = source.name("unk_token")
    if unknown not in ids:
        raise CheckpointError(
            f"{source.files.folder}: the tokenizer's vocabulary lacks {unknown}, its unknown token"
        )
    known = dict(ids) | {token.content: index for index, token in source.added.items()}
    added = {token.content: token for token in source.added.values()}
    special = dict.fromkeys(map(str, (*source.special.values(), *source.extra)))
    for name in special:
        if name not in added:
            added[name] = AddedToken(name)
            known.setdefault(name, len(known))
    tokens = [_as_given(token, special=name in special) for name, token in added.items()]
    return Vocabulary(known, unknown, tokens)


def _as_given(token: AddedToken, *, special: bool) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=False,
        special=token.special or special,
    )
