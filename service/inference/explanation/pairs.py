"""The explanation of one pair of texts: its numbers, their error, and how far they agree.

Notation: S_a and S_b tokens of the texts, L layers, N heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.engines.contract import Floats
from service.inference.explanation.rank_correlation import spearman


@dataclass(frozen=True)
class PairExplanation:
    """Why two texts are alike; None what is not wanted."""

    similarity: float
    """Cosine of the two vectors."""
    pairs: Floats | None = None
    """`[S_a, S_b]`, which sum to the similarity."""
    decomposition: Floats | None = None
    """`[S_a, S_b]` of input tokens, which sum to the similarity."""
    occlusion: tuple[Floats, Floats] | None = None
    """`[S_a]` and `[S_b]`: the similarity less the one without that token."""

    heads: Floats | None = None
    """`[L, N]`: the similarity less the one with that head switched off in both texts."""

    @property
    def shares(self) -> dict[str, Floats]:
        """The matrices that are there, by their method's name."""
        named = {"pairs": self.pairs, "decomposition": self.decomposition}
        return {name: matrix for name, matrix in named.items() if matrix is not None}

    def error(self, matrix: Floats) -> float:
        """|sum of the shares − similarity|."""
        return abs(float(matrix.sum(dtype=np.float64)) - self.similarity)

    def agreement(self) -> dict[str, float | None]:
        """Spearman of each method's row and column sums with occlusion, over both texts' tokens.

        None where all of one are equal; no method where there is no occlusion.
        """
        if self.occlusion is None:
            return {}
        occluded = np.concatenate(self.occlusion)
        return {
            name: spearman(np.concatenate([matrix.sum(axis=1), matrix.sum(axis=0)]), occluded)
            for name, matrix in self.shares.items()
        }
