"""Decoder input of a target: its labels, shifted right. Without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shift_right(labels: NDArray[np.int64], start_token_id: int | None) -> NDArray[np.int64]:
    """Return labels `[T]` shifted right, `[T]`: the start token, then all labels but the last.

    Without a start token the last label comes first, as in mBART.
    """
    shifted = np.roll(labels, 1)
    if start_token_id is not None:
        shifted[:1] = start_token_id
    return shifted
