"""Patches of pixel values, as the rows that a patch embedding multiplies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def patch_rows(values: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Cut pixel values into square patches, row by row; C channels, P pixels of an edge.

    Pixels at the right and bottom that do not fill a patch are dropped, as by a convolution of
    stride P. `[C, height, width]` → `[rows · columns, C · P · P]`, each row in the order of a
    Conv2d's flattened weight.
    """
    channels, rows, columns = values.shape[0], values.shape[1] // size, values.shape[2] // size
    whole = values[:, : rows * size, : columns * size]
    grid = whole.reshape(channels, rows, size, columns, size)
    return grid.transpose(1, 3, 0, 2, 4).reshape(rows * columns, channels * size * size)
