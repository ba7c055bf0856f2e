"""Token vectors to one vector a text, as sentence-transformers does it. numpy only.

Notation: S tokens of one text, without padding; H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
PoolingName = Literal["mean", "cls", "max", "last"]
POOLINGS: tuple[PoolingName, ...] = get_args(PoolingName)


@dataclass(frozen=True, slots=True)
class TextPooling:
    """How one text of a batch becomes one vector."""

    text: int
    """Which of the batch's texts."""
    layer: int
    """Which hidden state, 0 … L."""
    mode: PoolingName
    first_token: int = 0
    """Tokens before this one are left out; one at least is left."""
    unit_features: int = 0
    """So many features, from the first, become a unit vector, and what follows them means nothing;
    0: the vector stays as it is."""


def pool(hidden: NDArray[np.float32], mode: PoolingName) -> Vector:
    """One vector for one text.

    Args:
        hidden: `[S, H]`, S ≥ 1, real tokens only.
        mode: the mean over tokens, the first token ("cls"), the maximum of each feature,
            or the last token.

    Returns:
        `[H]`, not normalised.

    """
    match mode:
        case "mean":
            return hidden.mean(axis=0)
        case "cls":
            return hidden[0].copy()
        case "max":
            return hidden.max(axis=0)
        case "last":
            return hidden[-1].copy()


def l2_normalize(vector: Vector) -> Vector:
    """`vector` / max(‖vector‖₂, 1e-12), as torch's `normalize` does."""
    norm = np.sqrt(np.dot(vector, vector))
    return vector / np.maximum(norm, np.float32(1e-12))
