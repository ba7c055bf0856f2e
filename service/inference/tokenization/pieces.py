"""The tokens of a text as text-embeddings-inference tells them, with offsets in UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from service.engines.contract import Ids
from service.inference.tokenization.tokenized import Places, places_of

LONG_TOKENS = 2**14
"""Number of tokens from which a text is long."""
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
    """A text after its prompt, and its S tokens as arrays: lists take ten times the memory."""

    text: str
    ids: Ids
    """`[S]`."""
    places: Places
    """`[S, 2]`: start and end of each token in code points."""
    special: Mapping[int, str]
    """Names of the tokens that the tokenizer put around the text, by their index."""

    @classmethod
    def of(cls, text: str, encoding: Encoding, ids: Sequence[int]) -> Spelling:
        """Return the spelling of a text, which keeps nothing of its encoding."""
        tokens: Sequence[str] = ()
        special = [n for n, put in enumerate(encoding.special_tokens_mask) if put]
        if special:
            tokens = encoding.tokens
        names = {index: tokens[index] for index in special}
        return cls(text, np.array(ids, np.int64), _places(encoding), names)

    @property
    def characters(self) -> int:
        """Number of characters of all pieces: some may stand for the same ones."""
        return int((self.places[:, 1] - self.places[:, 0]).sum())

    def steps(self, size: int) -> Iterator[list[Piece]]:
        """Yield the tokens in order, at most `size` at a time."""
        at = _byte_offsets(self.text)
        for first in range(0, len(self.ids), size):
            part = slice(first, first + size)
            places = self.places[part]
            columns = (self.ids[part], *places.T, *at[places].T)
            rows = zip(*(column.tolist() for column in columns), strict=True)
            yield [self._piece(index, *row) for index, row in enumerate(rows, first)]

    def _piece(self, index: int, token_id: int, start: int, end: int, *at: int) -> Piece:
        if (name := self.special.get(index)) is not None:
            return Piece(token_id, name, special=True, start=None, stop=None)
        return Piece(token_id, self.text[start:end], special=False, start=at[0], stop=at[1])


def _places(encoding: Encoding) -> Places:
    """Return the offsets `[S, 2]` of a text's tokens.

    The tokenizer makes a list of all offsets under Python's global lock, 40 ms for 500,000 tokens,
    for which the event loop would wait. Those of a long text are therefore read one by one.
    """
    if len(encoding) <= LONG_TOKENS:
        return places_of(encoding.offsets)
    each = (encoding.token_to_chars(index) or (0, 0) for index in range(len(encoding)))
    return np.fromiter(each, np.dtype((np.int32, 2)), len(encoding))


def _byte_offsets(text: str) -> NDArray[np.int64]:
    """Bytes of UTF-8 before each character, and of all."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = np.ones(len(points), np.int64)
    for first in _FIRST_OF_LENGTH:
        lengths += points >= first
    return np.concatenate([[0], np.cumsum(lengths)])
