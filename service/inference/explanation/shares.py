"""Shares of tokens in a cosine, and the order in which occlusion takes spans.

Notation: S tokens of a text, H hidden size, W spans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.engines.contract import Floats
from service.inference.explanation.pairs import span_sums
from service.inference.explanation.spans import AnySpan


def shares_in_means(states: Sequence[Floats], first: Sequence[int]) -> list[Floats]:
    """Return the share of each token in the cosine of two texts' means, up to a common factor.

    Args:
        states: `[S, H]` of both texts.
        first: index of the first pooled token of each text; tokens before it get share 0.

    Returns:
        `[S]` of each text.

    """
    pooled = [rows[start:] for rows, start in zip(states, first, strict=True)]
    means = [rows.mean(axis=0) for rows in pooled]
    pairs = zip(pooled, reversed(means), first, strict=True)
    return [np.pad(rows @ mean / len(rows), (start, 0)) for rows, mean, start in pairs]


def most_promising(spans: Sequence[AnySpan], shares: Floats, top: int | None) -> list[int]:
    """Return the indices of the spans with the largest shares, the largest first.

    Args:
        spans: the spans of one text.
        shares: `[S]`, the share of each token.
        top: number of spans; all if None.

    """
    order: list[int] = np.argsort(-span_sums(spans, shares), kind="stable").tolist()
    return order[:top]
