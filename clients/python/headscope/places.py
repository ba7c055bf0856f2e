"""Assignment of a pair's tokens to its two texts.

Tokenizers of RoBERTa, XLM-RoBERTa and MPNet give both texts of a pair segment 0, so `segment_ids`
alone are not sufficient. Notation: S tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

Offset = tuple[int, int]
SPECIAL = (0, 0)
"""Offsets of special tokens and of a prompt's tokens."""


def second_start(
    tokens: Sequence[str],
    offsets: Sequence[Offset],
    segment_ids: Sequence[int],
    texts: Sequence[str],
) -> int | None:
    """Return the index of the first token of a pair's second part; None for a single text.

    Differing `segment_ids` decide. Otherwise a pair ends with a separator, and its second text
    begins after the separator before that, as after `</s></s>`, even if a text is empty. A
    separator within a text has offsets there, and does not count. Without separators in between,
    the second text begins where offsets decrease, or where an offset is outside the first text;
    equal consecutive offsets are the bytes of one character.
    """
    if len(texts) < 2:
        return None
    if 1 in segment_ids:
        return segment_ids.index(1)
    ends = [
        i
        for i, (token, offset) in enumerate(zip(tokens, offsets, strict=True))
        if (token, offset) == (tokens[-1], SPECIAL)
    ]
    if len(ends) > 1:
        return ends[-2] + 1
    previous = SPECIAL
    for i, (start, end) in enumerate(offsets):
        if start < end:
            if (start, end) < previous or end > len(texts[0]):
                return i
            previous = (start, end)
    return None


def places_of(
    tokens: Sequence[str],
    offsets: Sequence[Offset],
    segment_ids: Sequence[int],
    texts: Sequence[str],
) -> list[int]:
    """Return the index of each token's text, `[S]`: 0, or 1 from a pair's second part on."""
    second = second_start(tokens, offsets, segment_ids, texts)
    first = len(tokens) if second is None else second
    return [0] * first + [1] * (len(tokens) - first)
