"""Bounds on how well vectors of each precision agree about similar texts, and on checks of texts.

docs/decisions/0026-a-verdict-for-each-use.md has the measurements and the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from model.config.precision import Precision
from model.numerics.similarity import Similarity

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
