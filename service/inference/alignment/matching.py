"""Matches of the tokens of two texts, from vectors or from cross-attention.

Notation: m tokens of the source, n of the target, H features, W_s and W_t words with
tokens.

`mutual` and `itermax`: Argmax and Itermax of Jalili Sabet et al. 2020,
https://arxiv.org/abs/2004.08728; `softmax`: Dou and Neubig 2021, https://arxiv.org/abs/2101.08231;
`cross`: the token that a decoder attends to most while it predicts another, as in Garg et al. 2019,
https://arxiv.org/abs/1909.02074. Tokens to words as all of them do: two words are aligned when a
token of one is aligned with a token of the other.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from service.engines.contract import Floats
from service.inference.alignment.words import AlignedText

VectorMethod = Literal["mutual", "itermax", "softmax"]
Method = Literal["cross", "mutual", "itermax", "softmax"]
VECTOR_METHODS: tuple[VectorMethod, ...] = get_args(VectorMethod)
Mask = NDArray[np.bool_]
DISCOUNT = 0.9
"""Of similarities with a token that is aligned already, in the second round of itermax (α)."""
FEWEST_TOKENS = 3
"""Of either text, for which itermax has a second round."""
SOFTMAX_THRESHOLD = 0.001
HALF = np.float32(0.5)
TINY = np.finfo(np.float32).tiny
"""What is divided by instead of 0."""


class Matches(NamedTuple):
    """What a method finds between all tokens, or all words, of two texts."""

    aligned: Mask
    """`[m, n]`."""
    scores: Floats
    """`[m, n]`."""


def match_vectors(
    source: Floats, target: Floats, method: VectorMethod, threshold: float = SOFTMAX_THRESHOLD
) -> Matches:
    """Matches by the vectors of tokens.

    Args:
        source: `[m, H]`, m ≥ 1.
        target: `[n, H]`, n ≥ 1.
        method: of the scores, `softmax` has harmonic means of two probabilities, others cosines.
        threshold: that both probabilities of `softmax` exceed.

    """
    if method == "softmax":
        return softmax_match(source @ target.T, threshold)
    cosines: Floats = unit_vectors(source) @ unit_vectors(target).T
    return Matches((mutual if method == "mutual" else itermax)(HALF + HALF * cosines), cosines)


def unit_vectors(vectors: Floats) -> Floats:
    """`[m, H]`, each divided by its length; zeros stay zeros."""
    lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Floats = np.divide(vectors, np.maximum(lengths, TINY))
    return found


def mutual(similarity: Floats) -> Mask:
    """Pairs of tokens, each of which is the other's most similar one; `[m, n]`, m, n ≥ 1."""
    return _best(similarity, 1) & _best(similarity, 0)


def itermax(similarity: Floats) -> Mask:
    """Mutual pairs, and those of a second round between tokens of which one is aligned at most.

    Args:
        similarity: `[m, n]` in 0 … 1, m, n ≥ 1.

    """
    found = mutual(similarity)
    rows, columns = found.any(axis=1, keepdims=True), found.any(axis=0, keepdims=True)
    if min(similarity.shape) < FEWEST_TOKENS or rows.all() or columns.all():
        return found
    weights = np.where(rows & columns, 0, np.where(rows | columns, DISCOUNT, 1))
    again = mutual(similarity * weights.astype(np.float32))
    return found | (again & ~(rows & columns))


def softmax_match(products: Floats, threshold: float = SOFTMAX_THRESHOLD) -> Matches:
    """Pairs whose probability exceeds a threshold among the tokens of either text.

    Args:
        products: `[m, n]`, dot products of token vectors.
        threshold: of both probabilities.

    """
    forward, backward = _softmax(products, 1), _softmax(products, 0)
    aligned = (forward > threshold) & (backward > threshold)
    total = forward + backward
    return Matches(aligned, 2 * forward * backward / np.maximum(total, TINY))


def match_cross(weights: Floats) -> Matches:
    """Each token of a target with the source's to which its prediction attends most.

    Args:
        weights: `[n, m]`, of one head or a mean over several; row t is of the step that predicts
            the target's token t.

    """
    return Matches(_best(weights.T, 0), np.ascontiguousarray(weights.T))


def lift(matches: Matches, source: AlignedText, target: AlignedText) -> Matches:
    """Matches of tokens as matches of words that have tokens: of each pair the largest score.

    Shape: `[m, n]` → `[W_s, W_t]`, rows and columns of `AlignedText.worded`.
    """
    rows = [np.maximum.reduceat(one[source.pieces], source.starts, axis=0) for one in matches]
    aligned, scores = (
        np.maximum.reduceat(one[:, target.pieces], target.starts, axis=1) for one in rows
    )
    return Matches(aligned, scores)


def _best(scores: Floats, axis: int) -> Mask:
    """Where the largest of each row (axis 1) or column (axis 0) is, the first of equal ones."""
    found = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(found, np.expand_dims(scores.argmax(axis=axis), axis), True, axis=axis)
    return found


def _softmax(scores: Floats, axis: int) -> Floats:
    exponents = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exponents / exponents.sum(axis=axis, keepdims=True)
