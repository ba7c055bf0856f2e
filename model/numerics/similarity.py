"""Agreement of two sets of vectors about the similarity of texts. numpy only.

A ranking depends on the order of similarities, not on the vectors: a rotation of all vectors
changes nothing, and a small error changes much where all texts are nearly alike.

docs/decisions/0026-a-verdict-for-each-use.md has the measurements and the reasons for the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model.config.encoder import Part
from model.config.precision import Precision

NEIGHBOURS = 10
"""Number of nearest neighbours in recall."""
TAIL = 0.05
"""Share of the texts whose cosines are at most `low_cosine`."""
DIGITS = 4
"""Decimal digits of each figure."""


class Similarity(Part):
    """Agreement of vectors with the reference's vectors of the same texts."""

    texts: int
    rank_correlation: float
    """Spearman's ρ of the cosines of all pairs of texts with the reference's."""
    neighbour_recall: float
    """Mean share of the reference's `NEIGHBOURS` nearest neighbours that are found."""
    mean_cosine: float
    """Mean over the texts of the cosine of a vector with the reference's."""
    low_cosine: float
    """Quantile `TAIL` of these cosines."""
    least_cosine: float
    """Least of these cosines."""


def _agreement(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Return Spearman's ρ; if one side is constant, 1 if the other is constant too, else 0."""
    constant = np.ptp(a) == 0, np.ptp(b) == 0
    return float(all(constant)) if any(constant) else spearman(a, b)


def spearman(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Return Spearman's ρ: Pearson's correlation of the ranks, where ties share their mean rank.

    Spearman 1904, "The proof and measurement of association between two things". `[n]`, `[n]` → −1
    … 1; NaN if all numbers of one side are equal, which have no order.
    """
    ranks, others = _centred_ranks(a), _centred_ranks(b)
    scale = float(np.sqrt((ranks @ ranks) * (others @ others)))
    return float(np.clip(ranks @ others / scale, -1, 1)) if scale > 0 else math.nan


def similarity(reference: NDArray[np.floating], candidate: NDArray[np.floating]) -> Similarity:
    """Compare the vectors `[n, D]` of n texts with the reference's, in any scale.

    A candidate that is not finite makes every figure 0.
    """
    n = len(reference)
    if not np.isfinite(candidate).all():
        return Similarity(texts=n, **dict.fromkeys(_NAMES, 0.0))
    exact, approximate = _units(reference), _units(candidate)
    cosines = (exact * approximate).sum(axis=1)
    between = np.triu_indices(n, 1)
    all_exact, all_approximate = exact @ exact.T, approximate @ approximate.T
    figures = {
        "rank_correlation": _agreement(all_exact[between], all_approximate[between]),
        "neighbour_recall": _recall(all_exact, all_approximate),
        "mean_cosine": float(cosines.mean()),
        "low_cosine": float(np.quantile(cosines, TAIL)),
        "least_cosine": float(cosines.min()),
    }
    return Similarity(texts=n, **{name: round(value, DIGITS) for name, value in figures.items()})


def _units(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-30)


def _recall(exact: NDArray[np.float64], approximate: NDArray[np.float64]) -> float:
    """Return the mean share of each text's nearest neighbours that are in both matrices."""
    k = min(NEIGHBOURS, len(exact) - 1)
    shares = [
        np.isin(mine, theirs).mean()
        for mine, theirs in zip(_nearest(exact, k), _nearest(approximate, k), strict=True)
    ]
    return float(np.mean(shares))


def _nearest(cosines: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    """Return the indices of the k texts most similar to each text, excluding the text itself."""
    others = cosines.copy()
    np.fill_diagonal(others, -np.inf)
    return np.argsort(-others, axis=1, kind="stable")[:, :k]


def _centred_ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return ranks 1 … n minus their mean."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places] - (len(values) + 1) / 2


SIMILARITY_AT_LEAST: Mapping[Precision, Mapping[str, float]] = {
    "bf16": {
        "rank_correlation": 0.997,
        "neighbour_recall": 0.93,
        "mean_cosine": 0.999,
        "low_cosine": 0.999,
        "least_cosine": 0.998,
    },
    "int8": {
        "rank_correlation": 0.975,
        "neighbour_recall": 0.8,
        "mean_cosine": 0.98,
        "low_cosine": 0.97,
        "least_cosine": 0.9,
    },
}
"""Minimum figures of `Similarity`. fp32 and fp16 have none: every tensor has its tolerance."""
Check = Literal["", "text", "alone"]
"""Name of a check; empty for the comparison of all inputs.

`text` compares texts, not random ids; `alone` compares a text in a batch with the same text alone,
both computed by the artifact's graphs.
"""
CHECK_AT_LEAST: Mapping[Check, float] = {"": -1.0, "text": 0.9, "alone": 0.97}
"""Minimum cosine of a check's tensors, where their precision asks for less."""
LARGEST_LOSS = 0.005
"""Largest allowed loss of Spearman's ρ on scored pairs, compared with fp32."""
_NAMES = {
    "rank_correlation": "rank correlation of similarities",
    "neighbour_recall": "recall of the ten nearest neighbours",
    "mean_cosine": "mean cosine",
    "low_cosine": "cosine at the 5 % quantile",
    "least_cosine": "least cosine",
}


def shortfall(figures: Similarity, at_least: Mapping[str, float]) -> str | None:
    """Return the figures below their bounds, in one line; None if all reach them."""
    below = [
        f"{_NAMES[name]} {getattr(figures, name):.4f} (at least {bound:g})"
        for name, bound in at_least.items()
        if getattr(figures, name) < bound
    ]
    return f"{', '.join(below)}, over {figures.texts} texts" if below else None


def bounds_line(precision: Precision) -> str:
    """Return the bounds of a precision's vectors, in one line."""
    at_least = SIMILARITY_AT_LEAST.get(precision)
    if at_least is None:
        return f"{precision} vectors: every tensor within its tolerance"
    bounds = ", ".join(f"{_NAMES[name]} {bound:g}" for name, bound in at_least.items())
    return f"{precision} vectors, at least: {bounds}"
