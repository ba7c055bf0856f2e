"""Tokens to words, and maps over tokens to maps over words.

Notation: S tokens, W words, `…` any leading axes (layers, heads).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headscope.places import Offset, places_of

IDEOGRAPHS = ("CJK UNIFIED", "CJK COMPATIBILITY", "HIRAGANA", "KATAKANA")


@dataclass(frozen=True)
class Word:
    """One row of a merged map."""

    text: str
    """As the caller wrote it; of a special token, its name."""
    tokens: list[int]
    segment: int
    """Which of the caller's texts it is of."""
    special: bool
    """A special token, one of a prompt, or a bare space: it has no character of the text."""


def words_of(
    tokens: Sequence[str],
    offsets: Sequence[Offset],
    segment_ids: Sequence[int],
    texts: Sequence[str],
) -> list[Word]:
    """Words: tokens with no gap between them in the text.

    Punctuation at such a run's ends stands alone; inside it (didn't, open-source) it belongs to
    the word. An ideograph is a word, with the pieces that continue it.

    Args:
        tokens: their names.
        offsets: of each, in code points of its own text; `(0, 0)` for special ones.
        segment_ids: the model's, which of RoBERTa's kind are all 0.
        texts: the caller's: one, or a pair's two.

    """
    places = places_of(tokens, offsets, segment_ids, texts)
    placed = zip(offsets, places, strict=True)
    pieces = [texts[place][start:end] for (start, end), place in placed]
    words = []
    for run in touching(tokens, offsets, places, pieces):
        segment, special = places[run[0]], is_nowhere(offsets[run[0]])
        for group in split(run, tokens, pieces):
            start, end = offsets[group[0]][0], offsets[group[-1]][1]
            text = tokens[run[0]] if special else texts[segment][start:end]
            words.append(Word(text, group, segment, special))
    return words


def touching(
    tokens: Sequence[str],
    offsets: Sequence[Offset],
    places: Sequence[int],
    pieces: Sequence[str],
) -> list[list[int]]:
    """Runs of tokens that touch each other in the text; a special token is a run of its own."""
    runs: list[list[int]] = []
    for i, (start, end) in enumerate(offsets):
        before = offsets[i - 1] if i else (0, 0)
        placed = start < end and before[0] < before[1]
        touches = before[1] == start and not pieces[i][:1].isspace()
        if placed and places[i] == places[i - 1] and (touches or continues(tokens[i])):
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def split(run: Sequence[int], tokens: Sequence[str], pieces: Sequence[str]) -> Iterator[list[int]]:
    """A run's words: what lies between its first and last piece with a letter is one of them."""
    wordy = [place for place, token in enumerate(run) if is_wordy(pieces[token])]
    first, last = (wordy[0], wordy[-1]) if wordy else (len(run), -1)
    group = [run[0]]
    for place, token in enumerate(run[1:], 1):
        inside = first < place <= last
        ideographs = is_ideographic(pieces[group[-1]]) or is_ideographic(pieces[token])
        if continues(tokens[token]) or (inside and not ideographs):
            group.append(token)
        else:
            yield group
            group = [token]
    yield group


def is_nowhere(offset: Offset) -> bool:
    """Without a character: a special token, or a space that stands before a word, as `Ġ`."""
    return offset[0] == offset[1]


def continues(token: str) -> bool:
    """WordPiece's mark of a token that is not its word's first."""
    return token.startswith("##")


def is_wordy(piece: str) -> bool:
    """With a letter, a mark or a digit in it."""
    return any(unicodedata.category(character)[0] in "LMN" for character in piece)


def is_ideographic(piece: str) -> bool:
    """With a Chinese or Japanese character in it."""
    return any(unicodedata.name(character, "").startswith(IDEOGRAPHS) for character in piece)


def merge(weights: NDArray[Any], groups: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Attention between words: summed over the tokens looked at, averaged over those that look.

    As Clark et al. 2019 do (https://arxiv.org/abs/1906.04341, section 4.1). Rows still sum to 1
    when every token is in one group.

    Shape: `[…, S, S]` → `[…, W, W]` for W groups of token indices.
    """
    member = np.zeros((len(groups), weights.shape[-1]), np.float32)
    for row, group in zip(member, groups, strict=True):
        row[list(group)] = 1
    merged: NDArray[np.float32] = member / member.sum(axis=-1, keepdims=True) @ (weights @ member.T)
    return merged
