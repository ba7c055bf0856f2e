"""Which text of a pair each token is of.

Tokenizers of RoBERTa, XLM-RoBERTa and MPNet give both texts of a pair the segment 0, so that
`segment_ids` alone do not tell. Notation: S tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

Offset = tuple[int, int]
SPECIAL = (0, 0)
"""Offsets of special tokens and of those of a prompt."""


def second_start(
    tokens: Sequence[str],
    offsets: Sequence[Offset],
    segment_ids: Sequence[int],
    texts: Sequence[str],
) -> int | None:
    """The index of the first token of a pair's second part; None of one text alone.

    `segment_ids` tell where they differ. Else a pair ends with a separator, and its second text
    begins after the last but one: after `</s></s>`, also where a text is empty. A separator that
    stands in a text has a place there, and is none. Without separators between, the second text
    begins where offsets go back, or where one does not lie in the first text; equal ones in turn
    are the bytes of one character.
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
    """The number of each token's text, `[S]`: 0, or 1 from a pair's second part on."""
    second = second_start(tokens, offsets, segment_ids, texts)
    first = len(tokens) if second is None else second
    return [0] * first + [1] * (len(tokens) - first)
