"""The part of a text that its tokens come from, where it is cut to a number of tokens.

A text that is far too long is not tokenised whole: its first characters are, or its last, and more
only if they give too few words. The cost follows the limit, not the length of the text.
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
"""Characters of a text that are tokenised at first for each token that fits: enough for prose."""
UNSETTLED_WORDS = 8
"""Words at the end of an excerpt that more of the text could change: the last may go on, and some
together may be the beginning of one special token."""
MOST_CHARACTERS = 2**18
"""Maximum number of characters of a text that are tokenised to find where it is cut."""
MOST_CHARACTERS_PER_TOKEN = 64
"""The same maximum for each token that fits, for models that take very long texts."""


class NotCut(Exception):
    """A text gives too few words within the characters that may be tokenised; says which limit."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A text's encoding, cut where it had to be."""

    encoding: Encoding
    truncated: bool = False
    skipped: tuple[int, int] = (0, 0)
    """Characters before the tokenised part of a text, and of the second text of a pair."""

    @property
    def offsets(self) -> list[Offset]:
        """Code points in the whole text, or in a token's own segment of a pair."""
        offsets: list[Offset] = self.encoding.offsets
        if not any(self.skipped):
            return offsets
        skipped = (*self.skipped, 0)  # the last for special tokens
        sequences = [2 if sequence is None else sequence for sequence in self.encoding.sequence_ids]
        return [
            (start + skipped[sequence], end + skipped[sequence])
            for (start, end), sequence in zip(offsets, sequences, strict=True)
        ]


class Cutter:
    """A tokenizer that cuts texts to a number of tokens, on one side."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, direction: Direction) -> None:
        self._tokenizer = copy_tokenizer(tokenizer)
        self._tokenizer.enable_truncation(max_tokens, direction=direction)
        self._whole = tokenizer
        self._max_tokens = max_tokens
        self._characters = CHARACTERS_PER_TOKEN * max_tokens
        self._most = max(MOST_CHARACTERS, MOST_CHARACTERS_PER_TOKEN * max_tokens)
        self._right = direction == "right"

    def encode(self, text: Text, *, special_tokens: bool = True) -> Excerpt:
        """Return the tokens of a text or pair that fit: those of the whole text, cut.

        Args:
            text: a text or pair.
            special_tokens: whether the tokenizer puts its special tokens around it.

        Raises:
            NotCut: the cut cannot be found within the characters that may be tokenised.

        """
        if not isinstance(text, str):
            return self._encode_pair(*text, special_tokens=special_tokens)
        size = self._characters
        while size < len(text):
            part = self._part(text, size)
            encoding = self._tokenizer.encode(part, add_special_tokens=special_tokens)
            if self._settled(encoding):
                return self._excerpt(encoding, len(text) - size)
            size = self._larger(size)
        return self._excerpt(self._tokenizer.encode(text, add_special_tokens=special_tokens))

    def _encode_pair(self, first: str, second: str, *, special_tokens: bool) -> Excerpt:
        """Return the tokens of a pair, of which at most one text may be an excerpt.

        The longer text gives way first, and how far depends on the exact length of the shorter one.
        """
        lengths = len(first), len(second)
        if sum(lengths) > self._most:
            if min(lengths) > self._most // 2:
                raise NotCut(
                    f"is a pair of {lengths[0]} and {lengths[1]} characters; one of the two texts "
                    f"may have more than {self._most // 2}: shorten the other"
                )
            if lengths[0] > lengths[1]:
                first = self._longer(first, second)
            else:
                second = self._longer(second, first)
        encoding = self._tokenizer.encode(first, second, add_special_tokens=special_tokens)
        return self._excerpt(encoding, lengths[0] - len(first), lengths[1] - len(second))

    def _longer(self, text: str, other: str) -> str:
        """Return a part of a text that has more words than fit, and more than the other text."""
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
        """Return the size of the next part to try.

        Raises:
            NotCut: the part was the largest already.

        """
        if size >= self._most:
            raise NotCut(
                f"has too few words in {self._most} characters to find where it is cut: "
                "remove what is not text, or split it"
            )
        return min(4 * size, self._most)

    def _excerpt(self, encoding: Encoding, first: int = 0, second: int = 0) -> Excerpt:
        """Return an encoding with the characters of each text that were left out of it."""
        skipped = (0, 0) if self._right else (first, second)
        return Excerpt(encoding, bool(encoding.overflowing), skipped)

    def _settled(self, encoding: Encoding) -> bool:
        """Whether the tokens that fit are the same whatever the rest of the text holds."""
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
    """Ids of the special tokens that it puts after a text, whether or not one is before."""
    encoding = tokenizer.encode("a")
    of_text = [place for place, mask in enumerate(encoding.special_tokens_mask) if not mask]
    ids: list[int] = encoding.ids[of_text[-1] + 1 if of_text else 1 :]
    return ids
