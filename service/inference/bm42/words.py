"""BM42 weights of the words in a text, by the attention of the [CLS] token.

Vasnetsov 2024, https://qdrant.tech/articles/bm42/, with the stemmer, the hash and the scale of
Qdrant's fastembed. The weight of a word is the sum over its pieces, without special tokens,
punctuation and stop words. The weight of a stem is the maximum over its words, stored as
√(ln(1 + weight)) at the index |MurmurHash3(stem)|.

Notation: S tokens of one text.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Sequence

import mmh3
import numpy as np
from py_rust_stemmers import SnowballStemmer

from service.engines.contract import Floats
from service.inference.head_vectors import SparseVector

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
"""English stop words of NLTK, without words with an apostrophe, which WordPiece splits."""
_LEFT_OUT = STOP_WORDS.union(string.punctuation)
_STEMMER = SnowballStemmer("english")
PREFIX = "##"
"""Prefix of a piece that continues a word in WordPiece vocabularies."""


def word_weights(
    tokens: Sequence[str], attention: Floats, special: Collection[str]
) -> Iterator[tuple[str, float]]:
    """Yield each word and the sum of the attention to its pieces.

    Args:
        tokens: S WordPieces of a text.
        attention: attention of [CLS] to each token, `[S]`, mean over heads.
        special: special tokens, which belong to no word.

    """
    word, weight = "", 0.0
    for token, share in zip(tokens, attention.tolist(), strict=True):
        if token in special:
            continue
        if token.startswith(PREFIX):
            word += token.removeprefix(PREFIX)
            weight += share
            continue
        if word:
            yield word, weight
        word, weight = token, share
    if word:
        yield word, weight


def sparse_vector(
    tokens: Sequence[str], attention: Floats, special: Collection[str]
) -> SparseVector:
    """Return the vector of a text; arguments as for `word_weights`."""
    largest: dict[str, float] = {}
    for word, weight in word_weights(tokens, attention, special):
        if word not in _LEFT_OUT:
            stemmed = _STEMMER.stem_word(word)
            largest[stemmed] = max(weight, largest.get(stemmed, 0.0))
    weights = {abs(mmh3.hash(word)): weight for word, weight in largest.items()}
    indices = np.array(sorted(weights), np.int64)
    values = np.array([weights[index] for index in indices.tolist()], np.float64)
    return SparseVector(indices, np.sqrt(np.log1p(values)).astype(np.float32))
