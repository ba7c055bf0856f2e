"""Truncation of texts to a number of tokens, while or after they are tokenised.

`Cutter` does not tokenise long texts whole. Of a text that is far too long, only the first or last
characters are tokenised, and more of them only if they have too few words. The cost therefore
depends on the limit, not on the text's length.

A `Cutter` is a copy of the tokenizer for one length. Clients may request any length, so that
`shortened` truncates their texts after tokenisation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from model.artifact.tokenizer import copy_tokenizer
from service.engines.contract import Ids
from service.errors import InputTooLong
from service.inference.tokenization.inputs import Text
from service.inference.tokenization.text_ends import without_padding
from service.inference.tokenization.tokenized import TokenizedText

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


class Excerpt(NamedTuple):
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
        """Return the truncated encoding of a pair, of which at most one text may be an excerpt."""
        lengths = len(first), len(second)
        first, second = self.pair_excerpt(first, second)
        encoding = self._tokenizer.encode(first, second, add_special_tokens=special_tokens)
        return self._excerpt(encoding, lengths[0] - len(first), lengths[1] - len(second))

    def pair_excerpt(self, first: str, second: str) -> tuple[str, str]:
        """Return a pair, with an excerpt of the longer text if the pair is far too long.

        The longer text is truncated first, to a length that depends on the shorter text's exact
        number of tokens. The shorter text is therefore tokenised whole.

        Raises:
            NotCut: both texts are too long, or the longer one has too few words.

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
        return first, second

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


def shortened(text: TokenizedText, max_tokens: int, direction: Direction) -> TokenizedText:
    """Return a text or pair truncated to `max_tokens` tokens; all special tokens remain.

    Of a pair, the longer text is truncated first (transformers' `longest_first`).

    Args:
        text: a whole text, or one truncated on the same side.
        max_tokens: maximum number of tokens; larger than the number of special tokens.
        direction: side that is truncated.

    Raises:
        InputTooLong: `max_tokens` is not larger than the number of special tokens.

    """
    if text.pad is not None:
        return text.pad(shortened(without_padding(text), max_tokens, direction))
    excess = len(text.input_ids) - max_tokens
    if excess <= 0:
        return text
    special = np.array([*text.special_tokens_mask], bool)
    parts = _parts(special)
    if max_tokens <= int(special.sum()):
        raise InputTooLong(
            f"{max_tokens} tokens leave no room beside the {int(special.sum())} special ones"
        )
    keep = special.copy()
    for part, count in zip(parts, _lengths([len(part) for part in parts], excess), strict=True):
        keep[part[:count] if direction == "right" else part[len(part) - count :]] = True
    kept: list[int] = np.flatnonzero(keep).tolist()
    return replace(
        text,
        tokens=[text.tokens[index] for index in kept],
        input_ids=text.input_ids[kept],
        segment_ids=text.segment_ids[kept],
        places=text.places[kept],
        special_tokens_mask=bytes(text.special_tokens_mask[index] for index in kept),
        truncated=True,
        unknown=text.unknown[kept],
    )


async def shorten(texts: list[TokenizedText], max_tokens: int, direction: Direction) -> None:
    """Replace each text of a list by `shortened`, which runs in a thread.

    Raises:
        InputTooLong: as for `shortened`.

    """

    def cut() -> list[TokenizedText]:
        return [shortened(text, max_tokens, direction) for text in texts]

    texts[:] = await asyncio.to_thread(cut)


def _parts(special: np.ndarray) -> list[Ids]:
    """Return the indices of a text's own tokens, or of each text of a pair.

    Special tokens separate the texts of a pair.
    """
    own = np.flatnonzero(~special)
    gaps = np.flatnonzero(np.diff(own) > 1)
    if not len(gaps):
        return [own]
    return [own[: gaps[0] + 1], own[gaps[0] + 1 :]]


def _lengths(sizes: Sequence[int], excess: int) -> list[int]:
    """Return how many tokens of each text remain if `excess` tokens are removed.

    Args:
        sizes: number of tokens of a text, or of both texts of a pair.
        excess: number of tokens to remove.

    """
    if len(sizes) == 1:
        return [sizes[0] - excess]
    room = sum(sizes) - excess
    shorter, longer = sorted(sizes)
    if shorter > room - shorter:
        shorter = min(shorter, room // 2)
    longer = room - shorter
    return [shorter, longer] if sizes[0] <= sizes[1] else [longer, shorter]
