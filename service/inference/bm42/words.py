"""BM42: the words of a text, weighted by how much the [CLS] token looks at them.

Vasnetsov 2024, https://qdrant.tech/articles/bm42/, with the indices and the scale of Qdrant's
fastembed: sums over the pieces of a word, without special tokens, punctuation and stop words; the
largest of all words with one stem; √(ln(1 + weight)) at the index |MurmurHash3(stem)|.

Notation: S tokens of one text.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from service.engines.contract import Floats
from service.inference.bm42.hashing import murmur3
from service.inference.bm42.stemmer import stem
from service.inference.tasks.task_heads import SparseVector

_ENGLISH = """
a about above after again against ain all am an and any are aren as at be because been before
being below between both but by can couldn d did didn do does doesn doing don down during each
few for from further had hadn has hasn have haven having he her here hers herself him himself
his how i if in into is isn it its itself just ll m ma me mightn more most mustn my myself
needn no nor not now o of off on once only or other our ours ourselves out over own re s same
shan she should shouldn so some such t than that the their theirs them themselves then there
these they this those through to too under until up ve very was wasn we were weren what when
where which while who whom why will with won wouldn y you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_ENGLISH.split())
"""NLTK's English ones, without those that have an apostrophe, which no word of WordPiece has."""
_LEFT_OUT = STOP_WORDS.union(string.punctuation)
PREFIX = "##"
"""Of a piece that continues a word, in WordPiece's vocabularies."""


def word_weights(
    tokens: Sequence[str], looks: Floats, special: Collection[str]
) -> Iterator[tuple[str, float]]:
    """Each word and the sum over its pieces.

    Args:
        tokens: of a text, S WordPieces.
        looks: `[S]`, how much [CLS] looks at each, in the mean over heads.
        special: tokens that belong to no word.

    """
    word, weight = "", 0.0
    for token, look in zip(tokens, looks.tolist(), strict=True):
        if token in special:
            continue
        if token.startswith(PREFIX):
            word += token.removeprefix(PREFIX)
            weight += look
            continue
        if word:
            yield word, weight
        word, weight = token, look
    if word:
        yield word, weight


def sparse_vector(tokens: Sequence[str], looks: Floats, special: Collection[str]) -> SparseVector:
    """The vector of one text; arguments as of `word_weights`."""
    largest: dict[str, float] = {}
    for word, weight in word_weights(tokens, looks, special):
        if word not in _LEFT_OUT:
            stemmed = stem(word)
            largest[stemmed] = max(weight, largest.get(stemmed, 0.0))
    weights = {abs(murmur3(word.encode())): weight for word, weight in largest.items()}
    indices = np.array(sorted(weights), np.int64)
    values = np.array([weights[index] for index in indices.tolist()], np.float64)
    return SparseVector(indices, np.sqrt(np.log1p(values)).astype(np.float32))
