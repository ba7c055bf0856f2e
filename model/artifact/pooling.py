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
    """Pooling of one text of a batch."""

    text: int
    """Number of the text in the batch."""
    layer: int
    """Number of the hidden state, 0 … L."""
    mode: PoolingName
    first_token: int = 0
    """Number of the first token that counts; at least one token does."""
    unit_features: int = 0
    """Number of leading features that are normalised to unit length; the rest is undefined. With 0
    nothing is normalised."""


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
