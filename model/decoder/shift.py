"""What a decoder reads of a target: its labels, shifted right. Without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shift_right(labels: NDArray[np.int64], start_token_id: int) -> NDArray[np.int64]:
    """`[T]` labels → `[T]`: the start token, then all labels but the last."""
    return np.concatenate([np.array([start_token_id], np.int64), labels[:-1]])
