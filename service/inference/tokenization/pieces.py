"""The tokens of a text as text-embeddings-inference tells them, with offsets in UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

_FIRST_OF_LENGTH = (0x80, 0x800, 0x10000)
"""The first code points that take 2, 3 and 4 bytes in UTF-8 (RFC 3629)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A token, and where it is in the text."""

    id: int
    text: str
    """The characters that it stands for; the token itself where it is special."""
    special: bool
    """Whether the tokenizer put it around the text."""
    start: int | None
    """Bytes of the text before it; None for a special token."""
    stop: int | None


@dataclass(frozen=True, slots=True)
class Spelling:
    """A text after its prompt, and its encoding."""

    text: str
    encoding: Encoding
    ids: Sequence[int]
    """Of the tokens."""
    characters: int
    """Of all pieces: some may stand for the same ones."""

    @classmethod
    def of(cls, text: str, encoding: Encoding, ids: Sequence[int]) -> Spelling:
        """A text's."""
        return cls(text, encoding, ids, sum(end - start for start, end in encoding.offsets))

    def pieces(self) -> list[Piece]:
        """The tokens, in order."""
        encoding, at = self.encoding, _byte_offsets(self.text).tolist()
        return [
            Piece(token_id, token, special=True, start=None, stop=None)
            if special
            else Piece(token_id, self.text[start:end], special=False, start=at[start], stop=at[end])
            for token_id, token, special, (start, end) in zip(
                self.ids,
                encoding.tokens,
                encoding.special_tokens_mask,
                encoding.offsets,
                strict=True,
            )
        ]


def _byte_offsets(text: str) -> NDArray[np.int64]:
    """Bytes of UTF-8 before each character, and of all."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = np.ones(len(points), np.int64)
    for first in _FIRST_OF_LENGTH:
        lengths += points >= first
    return np.concatenate([[0], np.cumsum(lengths)])
