"""Truncation of texts to a number of tokens, without tokenising long texts whole.

Of a text that is far too long, only the first or last characters are tokenised, and more of them
only if they have too few words. The cost therefore depends on the limit, not on the text's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenizers import Encoding, Tokenizer

from model.artifact.tokenizer import copy_tokenizer
from service.inference.tokenization.inputs import Text

Direction = Literal["right", "left"]
Offset = tuple[int, int]

CHARACTERS_PER_TOKEN = 8
"""Number of characters per allowed token in the first excerpt of a text: enough for prose."""
UNSETTLED_WORDS = 8
"""Number of words at the end of an excerpt that the following text could change: the last word may
continue, and several words may be the beginning of a special token."""
MOST_CHARACTERS = 2**18
"""Maximum number of characters that are tokenised to find a text's truncation point."""
MOST_CHARACTERS_PER_TOKEN = 64
"""Maximum number of these characters per allowed token, if larger, for models of long texts."""


class NotCut(Exception):
    """Error for a text with too few words in the maximum number of characters."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Encoding of a text, truncated if too long."""

    encoding: Encoding
    truncated: bool = False
    skipped: tuple[int, int] = (0, 0)
    """Number of characters before the excerpt of a text, and of the second text of a pair."""

    @property
    def offsets(self) -> list[Offset]:
        """Start and end of each token in code points of the text, or of its own text of a pair."""
        offsets: list[Offset] = self.encoding.offsets
        if not any(self.skipped):
            return offsets
        skipped = (*self.skipped, 0)  # 0 for special tokens
        sequences = [2 if sequence is None else sequence for sequence in self.encoding.sequence_ids]
        return [
            (start + skipped[sequence], end + skipped[sequence])
            for (start, end), sequence in zip(offsets, sequences, strict=True)
        ]


class Cutter:
    """Tokenizer that truncates texts to a number of tokens, on one side."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, direction: Direction) -> None:
        self._tokenizer = copy_tokenizer(tokenizer)
        self._tokenizer.enable_truncation(max_tokens, direction=direction)
        self._whole = tokenizer
        self._max_tokens = max_tokens
        self._characters = CHARACTERS_PER_TOKEN * max_tokens
        self._most = max(MOST_CHARACTERS, MOST_CHARACTERS_PER_TOKEN * max_tokens)
        self._right = direction == "right"

    def encode(self, text: Text, *, special_tokens: bool = True) -> Excerpt:
        """Return the encoding of the whole text or pair, truncated to the number of tokens.

        Args:
            text: a text or pair.
            special_tokens: whether to add special tokens.

        Raises:
            NotCut: the truncation point is not found within the maximum number of characters.

        """
        if not isinstance(text, str):
            return self._encode_pair(*text, special_tokens=special_tokens)
        size = self._characters
        while size < len(text):
            part = self._part(text, size)
            encoding = self._tokenizer.encode(part, add_special_tokens=special_tokens)
            if self._is_final(encoding):
                return self._excerpt(encoding, len(text) - size)
            size = self._larger(size)
        return self._excerpt(self._tokenizer.encode(text, add_special_tokens=special_tokens))

    def _encode_pair(self, first: str, second: str, *, special_tokens: bool) -> Excerpt:
        """Return the truncated encoding of a pair, of which at most one text may be an excerpt.

        The longer text is truncated first, to a length that depends on the shorter text's exact
        number of tokens. The shorter text is therefore tokenised whole.
        """
        lengths = len(first), len(second)
        if sum(lengths) > self._most:
            if min(lengths) > self._most // 2:
                raise NotCut(
                    f"is a pair of {lengths[0]} and {lengths[1]} characters; one of the two texts "
                    f"may have more than {self._most // 2}: shorten the other"
                )
            if lengths[0] > lengths[1]:
                first = self._excerpt_of_longer(first, second)
            else:
                second = self._excerpt_of_longer(second, first)
        encoding = self._tokenizer.encode(first, second, add_special_tokens=special_tokens)
        return self._excerpt(encoding, lengths[0] - len(first), lengths[1] - len(second))

    def _excerpt_of_longer(self, text: str, other: str) -> str:
        """Return an excerpt with more words than the limit and than the other text's tokens."""
        fewest = max(self._max_tokens, len(self._whole.encode(other, add_special_tokens=False)))
        size = self._characters
        while size < len(text):
            part = self._part(text, size)
            words = set(_words(self._whole.encode(part, add_special_tokens=False)))
            if len(words) >= fewest + UNSETTLED_WORDS:
                return part
            size = self._larger(size)
        return text

    def _part(self, text: str, size: int) -> str:
        return text[:size] if self._right else text[-size:]

    def _larger(self, size: int) -> int:
        """Return the size of the next excerpt to try.

        Raises:
            NotCut: the excerpt has the maximum size.

        """
        if size >= self._most:
            raise NotCut(
                f"has too few words in {self._most} characters to find where it is cut: "
                "remove what is not text, or split it"
            )
        return min(4 * size, self._most)

    def _excerpt(self, encoding: Encoding, first: int = 0, second: int = 0) -> Excerpt:
        """Return an encoding as an excerpt, with the number of characters skipped of each text."""
        skipped = (0, 0) if self._right else (first, second)
        return Excerpt(encoding, bool(encoding.overflowing), skipped)

    def _is_final(self, encoding: Encoding) -> bool:
        """Return whether more of the text cannot change the tokens before the truncation point."""
        kept = _words(encoding)
        cut = [word for other in encoding.overflowing for word in _words(other)]
        if not kept or not cut:
            return False
        if self._right:
            return max(cut) - max(kept) >= UNSETTLED_WORDS
        return min(kept) - min(cut) >= UNSETTLED_WORDS


def _words(encoding: Encoding) -> list[int]:
    return [word for word in encoding.word_ids if word is not None]


def closing_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the special tokens that a tokenizer adds after a text."""
    encoding = tokenizer.encode("a")
    of_text = [place for place, mask in enumerate(encoding.special_tokens_mask) if not mask]
    ids: list[int] = encoding.ids[of_text[-1] + 1 if of_text else 1 :]
    return ids
