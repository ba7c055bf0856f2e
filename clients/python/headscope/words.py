"""Texts of tokens, and words of several tokens.

Tokenizers of RoBERTa, XLM-RoBERTa and MPNet give both texts of a pair segment 0, so `segment_ids`
alone are not sufficient. Notation: S tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Offset = tuple[int, int]
SPECIAL = (0, 0)
"""Offsets of special tokens and of a prompt's tokens."""
IDEOGRAPHS = ("CJK UNIFIED", "CJK COMPATIBILITY", "HIRAGANA", "KATAKANA")


def places_of(
    tokens: Sequence[str],
    offsets: Sequence[Offset],
    segment_ids: Sequence[int],
    texts: Sequence[str],
) -> list[int]:
    """Return the index of each token's text, `[S]`: 0, or 1 from a pair's second part on.

    Differing `segment_ids` decide. Otherwise a pair ends with a separator, and its second text
    begins after the separator before that, as after `</s></s>`, even if a text is empty. A
    separator within a text has offsets there, and does not count. Without separators in between,
    the second text begins where offsets decrease, or where an offset is outside the first text;
    equal consecutive offsets are the bytes of one character.
    """
    size = len(tokens)
    if len(texts) < 2:
        return [0] * size
    separator = tokens[-1:], SPECIAL
    ends = [i for i in range(size) if (tokens[i : i + 1], offsets[i]) == separator]
    if 1 in segment_ids:
        second = segment_ids.index(1)
    elif len(ends) > 1:
        second = ends[-2] + 1
    else:
        second, previous = size, SPECIAL
        for i, (start, end) in enumerate(offsets):
            if start < end:
                if (start, end) < previous or end > len(texts[0]):
                    second = i
                    break
                previous = (start, end)
    return [0] * second + [1] * (size - second)


@dataclass(frozen=True)
class Word:
    """Word of a text, which is one row of a merged map."""

    text: str
    """Text of the word as the caller wrote it; the name of a special token."""
    tokens: list[int]
    segment: int
    """Index of the caller's text that contains the word."""
    special: bool
    """Whether the word has no character of the text: a special token, a prompt's, or a bare
    space."""


def words_of(
    tokens: Sequence[str],
    offsets: Sequence[Offset],
    segment_ids: Sequence[int],
    texts: Sequence[str],
) -> list[Word]:
    """Group tokens to words, without gaps between the tokens of a word.

    Punctuation at the ends of a run of tokens is separate; inside a run (didn't, open-source) it
    belongs to the word. An ideograph is a word, with the pieces that continue it.
    Offsets are in code points of the token's own text, and `(0, 0)` for special tokens; there are
    one or two texts.
    """
    places = places_of(tokens, offsets, segment_ids, texts)
    pieces = [texts[i][start:end] for i, (start, end) in zip(places, offsets, strict=True)]
    words = []
    for run in _runs(tokens, offsets, places, pieces):
        segment, (start, end) = places[run[0]], offsets[run[0]]
        special = start == end  # a special token, or a space such as `Ġ`
        for group in _split(run, tokens, pieces):
            start, end = offsets[group[0]][0], offsets[group[-1]][1]
            text = tokens[run[0]] if special else texts[segment][start:end]
            words.append(Word(text, group, segment, special))
    return words


def _runs(
    tokens: Sequence[str], offsets: Sequence[Offset], places: Sequence[int], pieces: Sequence[str]
) -> list[list[int]]:
    """Return runs of adjacent tokens in the text; a special token is a run of its own."""
    runs: list[list[int]] = []
    for i, (start, end) in enumerate(offsets):
        before = offsets[i - 1] if i else SPECIAL
        both = start < end and before[0] < before[1] and places[i] == places[i - 1]
        touches = before[1] == start and not pieces[i][:1].isspace()
        if both and (touches or _continues(tokens[i])):
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _split(run: Sequence[int], tokens: Sequence[str], pieces: Sequence[str]) -> Iterator[list[int]]:
    """Yield a run's words; all between its first and last piece with a letter is one word."""
    wordy = [i for i, token in enumerate(run) if _is_wordy(pieces[token])]
    first, last = (wordy[0], wordy[-1]) if wordy else (len(run), -1)
    group = [run[0]]
    for i, token in enumerate(run[1:], 1):
        inside = first < i <= last
        ideographs = _is_ideographic(pieces[group[-1]]) or _is_ideographic(pieces[token])
        if _continues(tokens[token]) or (inside and not ideographs):
            group.append(token)
        else:
            yield group
            group = [token]
    yield group


def _continues(token: str) -> bool:
    """Return whether a token has WordPiece's mark of continuation."""
    return token.startswith("##")


def _is_wordy(piece: str) -> bool:
    """Return whether a piece has a letter, a mark or a digit."""
    return any(unicodedata.category(character)[0] in "LMN" for character in piece)


def _is_ideographic(piece: str) -> bool:
    """Return whether a piece has a Chinese or Japanese character."""
    return any(unicodedata.name(character, "").startswith(IDEOGRAPHS) for character in piece)


def membership(groups: Sequence[Sequence[int]], size: int) -> NDArray[np.float32]:
    """Return `[W, S]`: 1 if the token belongs to the group, else 0."""
    member = np.zeros((len(groups), size), np.float32)
    for row, group in zip(member, groups, strict=True):
        row[list(group)] = 1
    return member


def merge(weights: NDArray[np.floating], groups: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Return attention between words: summed over keys' tokens, averaged over queries' tokens.

    This follows Clark et al. 2019 (https://arxiv.org/abs/1906.04341, section 4.1). Rows still sum
    to 1 if every token belongs to one group.

    Shape: `[…, S, S]` → `[…, W, W]` for W groups of token indices.
    """
    member = membership(groups, weights.shape[-1])
    merged: NDArray[np.float32] = member / member.sum(axis=-1, keepdims=True) @ (weights @ member.T)
    return merged
