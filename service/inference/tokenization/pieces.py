"""Tokens of a text in the form of text-embeddings-inference, with offsets in UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from service.engines.contract import Ids
from service.inference.tokenization.text import Offset, Places, places_of


class Subwords:
    """Detector of tokens that continue a word.

    If the vocabulary marks such tokens, as WordPiece does with ##, a token continues a word if its
    name is longer or shorter than its characters in the text. Otherwise it does if there is no
    space between it and the previous character. The unknown token always begins a word.
    """

    def __init__(self, tokenizer: Tokenizer, unknown_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._unknown = unknown_ids
        self._marked = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))

    def continuing(self, text: str, ids: Ids, offsets: Sequence[Offset]) -> Iterator[bool]:
        """Yield for each token whether it continues the previous token's word.

        Args:
            text: text of the client.
            ids: token ids `[S]`.
            offsets: start and end of each token in the text.

        """
        for index, (start, end) in zip(ids.tolist(), offsets, strict=True):
            if index in self._unknown:
                yield False
            elif self._marked:
                token = cast(str, self._tokenizer.id_to_token(index))
                yield len(token) != end - start
            else:
                yield start > 0 and " " not in text[start - 1 : start + 1]


LONG_TOKENS = 2**14
"""Maximum number of tokens whose offsets are read as one list."""
_FIRST_OF_LENGTH = (0x80, 0x800, 0x10000)
"""First code points of 2, 3 and 4 bytes in UTF-8 (RFC 3629)."""


class Spelling:
    """Text with its prompt, and its S tokens as arrays: lists take ten times the memory."""

    def __init__(
        self, text: str, encoding: Encoding, ids: Sequence[int], name: Callable[[int], str | None]
    ) -> None:
        """Read an encoding, and keep no reference to it.

        Args:
            text: prompt and text.
            encoding: tokens of the text. Its list of names is not read: the tokenizer makes it
                while it holds Python's global lock, 30 ms for 500,000 tokens.
            ids: the model's ids of the tokens.
            name: function from an id to the token's name.

        """
        self._text = text
        self.ids = np.array(ids, np.int64)
        self._places = _places(encoding)
        special = [n for n, is_special in enumerate(encoding.special_tokens_mask) if is_special]
        self._special = {index: name(ids[index]) or "" for index in special}
        """Names of the special tokens that the tokenizer added, by their index."""

    @property
    def characters(self) -> int:
        """Number of characters of all pieces, which may overlap."""
        return int((self._places[:, 1] - self._places[:, 0]).sum())

    def steps(self, size: int) -> Iterator[list[dict[str, Any]]]:
        """Yield the tokens in order, at most `size` at a time.

        `text` is the token's characters in the text, or the name of a special token; `start` and
        `stop` are in bytes, and null for a special token.
        """
        at, names = _byte_offsets(self._text), self._special
        for first in range(0, len(self.ids), size):
            places = self._places[first : first + size]
            columns = (self.ids[first : first + size], *places.T, *at[places].T)
            rows = zip(*(column.tolist() for column in columns), strict=True)
            yield [
                {"id": token, "text": names[n], "special": True, "start": None, "stop": None}
                if n in names
                else {
                    "id": token,
                    "text": self._text[begin:end],
                    "special": False,
                    "start": start,
                    "stop": stop,
                }
                for n, (token, begin, end, start, stop) in enumerate(rows, first)
            ]


def _places(encoding: Encoding) -> Places:
    """Return the offsets `[S, 2]` of a text's tokens.

    The tokenizer makes a list of all offsets while it holds Python's global lock: 40 ms for 500,000
    tokens, which would block the event loop. Offsets of a long text are therefore read one by one.
    """
    if len(encoding) <= LONG_TOKENS:
        return places_of(encoding.offsets)
    offsets = (encoding.token_to_chars(index) or (0, 0) for index in range(len(encoding)))
    return np.fromiter(offsets, np.dtype((np.int32, 2)), len(encoding))


def _byte_offsets(text: str) -> NDArray[np.int64]:
    """Return the number of UTF-8 bytes before each character, and of the whole text."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = np.ones(len(points), np.int64)
    for first in _FIRST_OF_LENGTH:
        lengths += points >= first
    return np.concatenate([[0], np.cumsum(lengths)])
