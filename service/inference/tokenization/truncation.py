"""Truncation of texts to a number of tokens, while or after they are tokenised.

`Truncator` does not tokenise long texts whole. Of a text that is far too long, only the first or
last characters are tokenised, and more of them only if they have too few words. The cost therefore
depends on the limit, not on the text's length.

Tokens are counted here. The truncation of the library `tokenizers` is not used: it also returns
what was cut, which for a pair is the product of both texts' lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from tokenizers import Encoding, Tokenizer

from service.engines.contract import Ids
from service.errors import InputTooLong
from service.inference.tokenization.inputs import TextOrPair
from service.inference.tokenization.text import Cut

Direction = Literal["right", "left"]

CHARACTERS_PER_TOKEN = 8
"""Number of characters per allowed token in the first excerpt of a text: enough for prose."""
UNSETTLED_WORDS = 8
"""Number of words at the end of an excerpt that the following text could change: the last word may
continue, and several words may be the beginning of a special token."""
MOST_CHARACTERS = 2**18
"""Maximum number of characters that are tokenised to find a text's truncation point."""
MOST_CHARACTERS_PER_TOKEN = 64
"""Maximum number of these characters per allowed token, if larger, for models of long texts."""


class Truncator:
    """Truncation of long texts to a number of tokens, on one side."""

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, direction: Direction) -> None:
        self._tokenizer, self._max_tokens, self._direction = tokenizer, max_tokens, direction
        self._characters = CHARACTERS_PER_TOKEN * max_tokens
        """Maximum number of characters of texts that are tokenised whole."""
        self._most = max(MOST_CHARACTERS, MOST_CHARACTERS_PER_TOKEN * max_tokens)

    def encode(
        self, text: TextOrPair, name: str = "the text", *, special_tokens: bool = True
    ) -> tuple[Encoding, Cut | None]:
        """Return the encoding of a text or pair, or of excerpts, and its tokens as for `cut`.

        Raises:
            InputTooLong: the text, with its name, has too few words in the maximum number of
                characters.

        """
        if isinstance(text, str):
            part, encoding = self._settle(
                text, self._max_tokens, name, special_tokens=special_tokens
            )
            skipped = len(text) - len(part), 0
        else:
            pair = self.pair_excerpt(*text, name)
            encoding = encode(self._tokenizer, pair, special_tokens=special_tokens)
            skipped = len(text[0]) - len(pair[0]), len(text[1]) - len(pair[1])
        return encoding, cut(encoding, self._max_tokens, self._direction, skipped)

    def pair_excerpt(self, first: str, second: str, name: str) -> tuple[str, str]:
        """Return excerpts of a pair whose truncation is the truncation of the pair.

        `longest_first` depends on the number of tokens of a text only up to the limit, and on which
        text has more tokens. The excerpt of the text with more tokens keeps more of them.
        """
        texts = [first, second]
        sizes = [len(first), len(second)]
        if max(sizes) <= self._characters:
            return first, second
        if sum(sizes) > self._most and min(sizes) > self._most // 2:
            raise InputTooLong(
                f"{name} is a pair of {sizes[0]} and {sizes[1]} characters; one of the two texts "
                f"may have more than {self._most // 2}: shorten the other"
            )
        short, long = (0, 1) if sizes[0] <= sizes[1] else (1, 0)
        tokens = len(encode(self._tokenizer, texts[short], special_tokens=False))
        found = len(self._settle(texts[long], tokens + 1, name)[1])
        fewer, more = (short, long) if (tokens, short) < (found, long) else (long, short)
        excerpt, encoding = self._settle(texts[fewer], self._max_tokens, name)
        least = len(encoding)
        texts[more], encoding = self._settle(texts[more], max(least, self._max_tokens) + 1, name)
        if (least, fewer) < (len(encoding), more):  # else a word that is cut has too many tokens
            texts[fewer] = excerpt
        return texts[0], texts[1]

    def _settle(
        self, text: str, count: int, name: str, *, special_tokens: bool = False
    ) -> tuple[str, Encoding]:
        """Return an excerpt with `count` tokens that more text cannot change, or the text."""
        size, right = max(self._characters, count), self._direction == "right"
        while size < len(text):
            part = text[:size] if right else text[-size:]
            encoding = encode(self._tokenizer, part, special_tokens=special_tokens)
            words = np.array([word for word in encoding.word_ids if word is not None])
            settled = (
                words <= words.max(initial=0) - UNSETTLED_WORDS
                if right
                else words >= words.min(initial=size) + UNSETTLED_WORDS
            )
            if np.count_nonzero(settled) >= count:
                return part, encoding
            if size >= self._most:
                raise InputTooLong(
                    f"{name} has too few words in {self._most} characters to find where it is cut: "
                    "remove what is not text, or split it"
                )
            size = min(4 * size, self._most)
        return text, encode(self._tokenizer, text, special_tokens=special_tokens)


def encode(tokenizer: Tokenizer, text: TextOrPair, *, special_tokens: bool = True) -> Encoding:
    """Return the encoding of a text or pair, without holding Python's lock as `encode` does."""
    return tokenizer.encode_batch([text], add_special_tokens=special_tokens)[0]


def cut(
    encoding: Encoding, max_tokens: int, direction: Direction, skipped: tuple[int, int] = (0, 0)
) -> Cut | None:
    """Return the tokens that remain, as transformers' `longest_first`; None for all.

    All remain if the special tokens alone exceed the maximum. `skipped` is the number of characters
    before, or after, the encoded excerpts of a text or pair.
    """
    if len(encoding) <= max_tokens:
        return None
    sequences = np.array([2 if one is None else one for one in encoding.sequence_ids])
    parts = [np.flatnonzero(sequences == index) for index in range(encoding.n_sequences)]
    kept, left = kept_tokens(parts, len(encoding), max_tokens, direction), direction == "left"
    return None if kept is None else Cut(kept, left, skipped if left else (0, 0))


def kept_tokens(
    parts: Sequence[Ids], count: int, max_tokens: int, direction: Direction
) -> list[int] | None:
    """Return the indices of the tokens, of `count`, that truncation keeps; None for all.

    `parts` are the indices of a text's own tokens, or of each text of a pair. All other tokens
    remain, and if these alone exceed the maximum, all remain. Of a pair, the longer text is
    truncated first (transformers' `longest_first`).
    """
    sizes, excess = [*map(len, parts)], count - max_tokens
    room = sum(sizes) - excess
    if excess <= 0 or room < 0:
        return None
    lengths = [room]
    if len(parts) > 1:
        shorter = min(*sizes, room // 2)
        lengths = [shorter, room - shorter]
        if sizes[0] > sizes[1]:
            lengths.reverse()
    keep = np.ones(count, bool)
    for part, size in zip(parts, lengths, strict=True):
        keep[part[size:] if direction == "right" else part[: len(part) - size]] = False
    kept: list[int] = np.flatnonzero(keep).tolist()
    return kept
