"""Matches between the tokens of two texts, by vectors or cross-attention.

Notation: m tokens of the source, n of the target, H features, W_s and W_t words with
tokens.

`mutual` and `itermax`: Argmax and Itermax of Jalili Sabet et al. 2020,
https://arxiv.org/abs/2004.08728; `softmax`: Dou and Neubig 2021, https://arxiv.org/abs/2101.08231;
`cross`: each target token with the source token that the decoder attends to most when it predicts
the target token, as in Garg et al. 2019, https://arxiv.org/abs/1909.02074. As in all these papers,
two words are aligned if any of their tokens are.
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
"""Factor of similarities with an already aligned token, in the second round of itermax (α)."""
FEWEST_TOKENS = 3
"""Minimum number of tokens of both texts for the second round of itermax."""
SOFTMAX_THRESHOLD = 0.001
HALF = np.float32(0.5)
TINY = np.finfo(np.float32).tiny
"""Minimum divisor, against division by 0."""


class Matches(NamedTuple):
    """Alignment of all tokens, or all words, of two texts."""

    aligned: Mask
    """Whether each pair is aligned, `[m, n]`."""
    scores: Floats
    """Score of each pair, `[m, n]`."""


def match_vectors(
    source: Floats, target: Floats, method: VectorMethod, threshold: float = SOFTMAX_THRESHOLD
) -> Matches:
    """Match tokens by their vectors.

    Args:
        source: vectors of the source's tokens, `[m, H]`, m ≥ 1.
        target: vectors of the target's tokens, `[n, H]`, n ≥ 1.
        method: method of matching. Scores of `softmax` are harmonic means of two probabilities,
            scores of other methods cosines.
        threshold: minimum of both probabilities of `softmax`, exclusive.

    """
    if method == "softmax":
        return softmax_match(source @ target.T, threshold)
    cosines: Floats = unit_vectors(source) @ unit_vectors(target).T
    return Matches((mutual if method == "mutual" else itermax)(HALF + HALF * cosines), cosines)


def unit_vectors(vectors: Floats) -> Floats:
    """Normalise vectors `[m, H]`; zero vectors stay zero."""
    lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = np.divide(vectors, np.maximum(lengths, TINY))
    return unit


def mutual(similarity: Floats) -> Mask:
    """Align tokens that are each other's most similar token; `[m, n]`, m, n ≥ 1."""
    return _best(similarity, 1) & _best(similarity, 0)


def itermax(similarity: Floats) -> Mask:
    """Align mutual pairs, then pairs of a second round in which at most one token is aligned yet.

    Args:
        similarity: similarities `[m, n]` in 0 … 1, m, n ≥ 1.

    """
    first = mutual(similarity)
    rows, columns = first.any(axis=1, keepdims=True), first.any(axis=0, keepdims=True)
    if min(similarity.shape) < FEWEST_TOKENS or rows.all() or columns.all():
        return first
    weights = np.where(rows & columns, 0, np.where(rows | columns, DISCOUNT, 1))
    second = mutual(similarity * weights.astype(np.float32))
    return first | (second & ~(rows & columns))


def softmax_match(products: Floats, threshold: float = SOFTMAX_THRESHOLD) -> Matches:
    """Align pairs whose softmax probabilities over both texts exceed a threshold.

    Args:
        products: dot products of token vectors, `[m, n]`.
        threshold: threshold of both probabilities.

    """
    forward, backward = _softmax(products, 1), _softmax(products, 0)
    aligned = (forward > threshold) & (backward > threshold)
    total = forward + backward
    return Matches(aligned, 2 * forward * backward / np.maximum(total, TINY))


def match_cross(weights: Floats) -> Matches:
    """Align each target token with the source token that its prediction attends to most.

    Args:
        weights: weights `[n, m]` of a head, or their mean over heads; row t belongs to the step
            that predicts target token t.

    """
    return Matches(_best(weights.T, 0), np.ascontiguousarray(weights.T))


def lift(matches: Matches, source: AlignedText, target: AlignedText) -> Matches:
    """Convert matches of tokens to matches of words with tokens, by the largest score of a pair.

    Shape: `[m, n]` → `[W_s, W_t]`, rows and columns of `AlignedText.worded`.
    """
    rows = [np.maximum.reduceat(array[source.pieces], source.starts, axis=0) for array in matches]
    aligned, scores = (
        np.maximum.reduceat(array[:, target.pieces], target.starts, axis=1) for array in rows
    )
    return Matches(aligned, scores)


def _best(scores: Floats, axis: int) -> Mask:
    """Mark the maximum of each row (axis 1) or column (axis 0), the first among equals."""
    best = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(best, np.expand_dims(scores.argmax(axis=axis), axis), True, axis=axis)
    return best


def _softmax(scores: Floats, axis: int) -> Floats:
    exponents = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exponents / exponents.sum(axis=axis, keepdims=True)
