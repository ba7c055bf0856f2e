"""The part of a text that its tokens come from, where it is cut to a number of tokens.

A text that is far too long is not tokenised whole: its first characters are, or its last, and more
only if they give too few tokens. What it costs follows the limit, not its length.
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


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A text's encoding, cut where it had to be."""

    encoding: Encoding
    truncated: bool = False
    skipped: int = 0
    """Characters of the text before those that were tokenised."""

    @property
    def offsets(self) -> list[Offset]:
        """Code points in the whole text, or in a token's own segment of a pair."""
        offsets: list[Offset] = self.encoding.offsets
        if not self.skipped:
            return offsets
        return [
            offset if sequence is None else (offset[0] + self.skipped, offset[1] + self.skipped)
            for offset, sequence in zip(offsets, self.encoding.sequence_ids, strict=True)
        ]


class Cutter:
    """A tokenizer that cuts texts to a number of tokens, on one side."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, direction: Direction) -> None:
        self._tokenizer = copy_tokenizer(tokenizer)
        self._tokenizer.enable_truncation(max_tokens, direction=direction)
        self._characters = CHARACTERS_PER_TOKEN * max_tokens
        self._right = direction == "right"

    def encode(self, text: Text, *, special_tokens: bool = True) -> Excerpt:
        """The tokens of a text or pair that fit; exactly those of the whole text, cut.

        Args:
            text: a text or pair.
            special_tokens: whether the tokenizer puts its special tokens around it.

        """
        if not isinstance(text, str):
            return _excerpt(self._tokenizer.encode(*text, add_special_tokens=special_tokens))
        size = self._characters
        while size < len(text):
            part = text[:size] if self._right else text[-size:]
            encoding = self._tokenizer.encode(part, add_special_tokens=special_tokens)
            excerpt = _excerpt(encoding, 0 if self._right else len(text) - size)
            if self._settled(excerpt.encoding):
                return excerpt
            size *= 4
        return _excerpt(self._tokenizer.encode(text, add_special_tokens=special_tokens))

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


def _excerpt(encoding: Encoding, skipped: int = 0) -> Excerpt:
    return Excerpt(encoding, bool(encoding.overflowing), skipped)


def closing_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of the special tokens that it puts after a text, whether or not one is before."""
    encoding = tokenizer.encode("a")
    of_text = [place for place, mask in enumerate(encoding.special_tokens_mask) if not mask]
    ids: list[int] = encoding.ids[of_text[-1] + 1 if of_text else 1 :]
    return ids
