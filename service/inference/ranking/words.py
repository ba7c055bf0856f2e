"""Words of a document, each with all its occurrences, for the comparison of two documents.

Notation: D tokens of a document, W distinct words of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Floats
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.truncation import Offset
from service.inference.words import split_words, tokens_of


@dataclass
class Word:
    """Distinct word of a document, without regard to case."""

    text: str
    """Word as `str.casefold` gives it."""
    spans: list[Offset] = field(default_factory=list)
    """Start and end of each occurrence in code points."""
    tokens: list[int] = field(default_factory=list)
    """Indices of the tokens of all occurrences, ascending."""


def distinct_words(text: str, tokenized: TokenizedText) -> list[Word]:
    """Return the words of a document in the order of their first occurrence.

    Args:
        text: the document as the caller sent it.
        tokenized: tokens of the document; a word without a token, such as one that was truncated,
            is skipped.

    """
    words: dict[str, Word] = {}
    spans = split_words(text)
    for (start, end), tokens in zip(spans, tokens_of(spans, tokenized), strict=True):
        if tokens:
            name = text[start:end].casefold()
            word = words.setdefault(name, Word(name))
            word.spans.append((start, end))
            last = word.tokens[-1] if word.tokens else -1  # a token may be a piece of two words
            word.tokens += [token for token in tokens if token > last]
    return [*words.values()]


def word_shares(words: Sequence[Word], shares: Floats) -> NDArray[np.float64]:
    """Return the sum of each word's tokens' shares: `[D]` → `[W]`.

    The share of a token of several words, such as a piece of two ideographs, is divided among them.
    """
    owners = Counter(token for word in words for token in word.tokens)
    return np.array(
        [sum(float(shares[token]) / owners[token] for token in word.tokens) for word in words]
    )
