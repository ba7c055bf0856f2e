"""Explanation of one pair of texts: its values, their error, and the methods' agreement.

Notation: S_a and S_b tokens of the texts, W_a and W_b spans, L layers, N heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from model.numerics.similarity import spearman
from service.engines.contract import Floats
from service.inference.explanation.spans import AnySpan, SpanKind


@dataclass(frozen=True)
class PairExplanation:
    """Values that explain a similarity: None if not requested, NaN if not computed."""

    similarity: float
    """Cosine of the two vectors."""
    pairs: Floats | None = None
    """`[S_a, S_b]`: shares of token pairs, which sum to the similarity."""
    decomposition: Floats | None = None
    """`[S_a, S_b]`: shares of pairs of input tokens, which sum to the similarity."""
    occlusion: tuple[Floats, Floats] | None = None
    """`[W_a]` and `[W_b]`: similarity minus the similarity without the span."""
    spans: tuple[Sequence[AnySpan], Sequence[AnySpan]] = ((), ())
    """The spans of `occlusion`."""
    span_kind: SpanKind = "tokens"
    heads: Floats | None = None
    """`[L, N]`: similarity minus the similarity with the head ablated in both texts."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Number of values to compute, by method; 1 for a decomposition."""

    @property
    def shares(self) -> dict[str, Floats]:
        """Matrices that were requested, by method."""
        named = {"pairs": self.pairs, "decomposition": self.decomposition}
        return {name: matrix for name, matrix in named.items() if matrix is not None}

    @property
    def computed(self) -> dict[str, int]:
        """Number of values computed before the deadline, by method, counted as in `wanted`."""
        values: dict[str, Sequence[Floats]] = {
            "occlusion": self.occlusion or (),
            "decomposition": () if self.decomposition is None else (self.decomposition[:1, :1],),
            "heads": () if self.heads is None else (self.heads,),
        }
        return {
            name: sum(int(np.count_nonzero(~np.isnan(part))) for part in values[name])
            for name in self.wanted
        }

    @property
    def partial(self) -> bool:
        """Whether the deadline came before all requested values were computed."""
        return self.computed != dict(self.wanted)

    def error(self, matrix: Floats) -> float:
        """Return |sum of the shares − similarity|; NaN if the shares were not computed."""
        return abs(float(matrix.sum(dtype=np.float64)) - self.similarity)

    def agreement(self) -> dict[str, float | None]:
        """Return Spearman's correlation of each method's sums over spans with the occlusion losses.

        The correlation is over the occluded spans of both texts; None if all sums or all losses
        are equal, or the method was not computed. The result is empty without occlusion.
        """
        if self.occlusion is None:
            return {}
        losses = np.concatenate(self.occlusion)
        known = ~np.isnan(losses)
        correlations: dict[str, float | None] = {}
        for name, matrix in self.shares.items():
            sides = zip(self.spans, (matrix.sum(axis=1), matrix.sum(axis=0)), strict=True)
            sums = np.concatenate([span_sums(spans, values) for spans, values in sides])
            correlation = np.nan if np.isnan(sums).any() else spearman(sums[known], losses[known])
            correlations[name] = None if np.isnan(correlation) else correlation
        return correlations


def span_sums(spans: Sequence[AnySpan], values: Floats) -> Floats:
    """Return the sum of the values of each span's tokens: `[S]` → `[W]`."""
    return np.array([values[list(span.tokens)].sum() for span in spans], np.float32)
