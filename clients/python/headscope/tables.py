"""Results as pandas tables; pandas is only imported on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(columns: Mapping[str, Sequence[object] | NDArray[np.generic]]) -> DataFrame:
    """Return a table of named columns.

    Raises:
        ImportError: pandas is not installed.

    """
    return _pandas().DataFrame(dict(columns))


def matrix_frame(
    values: NDArray[np.generic], rows: Sequence[str], columns: Sequence[str] | None = None
) -> DataFrame:
    """Return a table of a matrix; columns without names are numbered.

    Raises:
        ImportError: pandas is not installed.

    """
    return _pandas().DataFrame(values, index=list(rows), columns=columns and list(columns))


def vectors_frame(
    vectors: NDArray[np.generic], rows: Sequence[str], layers: Sequence[int]
) -> DataFrame:
    """Return a table of vectors `[rows, D]`, or `[layers, rows, D]` indexed by layer and row.

    Raises:
        ImportError: pandas is not installed.

    """
    if not layers:
        return matrix_frame(vectors, rows)
    index = _pandas().MultiIndex.from_product([layers, rows], names=["layer", None])
    return _pandas().DataFrame(vectors.reshape(len(index), -1), index=index)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas needs pandas: pip install pandas") from error
    return pandas
