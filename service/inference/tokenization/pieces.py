"""Tokens of a text in the form of text-embeddings-inference, with offsets in UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

_FIRST_OF_LENGTH = (0x80, 0x800, 0x10000)
"""First code points of 2, 3 and 4 bytes in UTF-8 (RFC 3629)."""


class TextTokens:
    """Text with its prompt, and its S tokens as arrays: lists take ten times the memory."""

    def __init__(
        self, text: str, encoding: Encoding, ids: Sequence[int], name: Callable[[int], str | None]
    ) -> None:
        """Read an encoding, and keep no reference to it.

        Its lists of names and offsets are not read: the tokenizer makes them while it holds
        Python's global lock, 70 ms for 500,000 tokens. `name` returns the token's name of an id.
        """
        self._text = text
        self.ids = np.array(ids, np.int64)
        offsets = (encoding.token_to_chars(index) or (0, 0) for index in range(len(ids)))
        self._places = np.fromiter(chain.from_iterable(offsets), np.int32).reshape(-1, 2)
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


def _byte_offsets(text: str) -> NDArray[np.int64]:
    """Return the number of UTF-8 bytes before each character, and of the whole text."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = 1 + (points[:, None] >= _FIRST_OF_LENGTH).sum(axis=1)
    return np.concatenate([[0], np.cumsum(lengths)])
