"""Sentences and paragraphs of a text.

Sentences are those of sentencex (Wikimedia, MIT): it knows abbreviations, quotations, lists, and
the punctuation of some 250 languages; abbreviations are the English ones.
"""

from __future__ import annotations

import re

from sentencex import get_sentence_boundaries

PIECE_CHARACTERS = 2**12
"""Number of characters that are split at a time. The library's time grows with the square of a
text beyond ASCII: 200,000 Chinese characters at once take 14 s."""
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*|\r\n?[^\S\r\n]*\r\n?\s*|\u2029\s*")


def paragraph_starts(text: str) -> list[int]:
    """Return the start of each paragraph after the first; blank lines separate paragraphs."""
    return [match.end() for match in _PARAGRAPH_END.finditer(text)]


def sentence_starts(text: str) -> list[int]:
    """Return the start of each sentence after the first, in code points, ascending.

    A sentence with more than `PIECE_CHARACTERS` characters may count as several.
    """
    starts, first = list[int](), 0
    while first < len(text):
        piece = text[first : first + PIECE_CHARACTERS]
        found = [part["start_index"] for part in get_sentence_boundaries("en", piece)][1:]
        if first + len(piece) == len(text):
            starts += [first + start for start in found]
            break
        # The last sentence of a piece may go on after it
        inner = found or [len(piece)]
        starts += [first + start for start in inner]
        first += inner[-1]
    return starts
