"""Display of results in notebooks, and as pandas tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pandas import DataFrame

SHADE, LOSS_SHADE = "31,119,180", "214,98,20"
"""Colours of positive and of negative values."""
STRONGEST = 0.6
"""Opacity of the largest value, so that its text is readable in light and dark notebooks."""
SHORT = 40
"""Maximum characters of a text in a line about a result."""
LONG = 300
"""Maximum characters of an unshaded text in a notebook."""
Shaded = tuple[str, float | None, str]
"""Characters, their value from -1 to 1, and their tooltip; None as value means no shade."""
BORDER = "border:1px solid rgba(127,127,127,.3)"
CELL = f"{BORDER};padding:2px 8px;text-align:left;vertical-align:top;background:none"


class Shown:
    """Result with a short form: its type and a few facts, no arrays."""

    __slots__ = ()

    def _facts(self) -> list[str]:
        """Return the parts of the line about the result."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._facts())})"

    def _repr_html_(self) -> str:
        """Return the notebook's form: the facts, unless a result has a form of its own."""
        return box([lines([", ".join(self._facts())])])


def start_of(text: str, most: int) -> str:
    """Return a text, truncated with an ellipsis if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short(text: str) -> str:
    """Return the start of a text, quoted."""
    return repr(start_of(text, SHORT))


def shape_of(name: str, shape: Iterable[int]) -> str:
    """Return the name of an array with its shape, as `pooled [2, 384]`."""
    return f"{name} [{', '.join(map(str, shape))}]"


def box(parts: Iterable[str]) -> str:
    """Return the HTML of one result."""
    return f'<div style="font-size:13px;line-height:1.6;overflow:auto">{"".join(parts)}</div>'


def lines(texts: Iterable[str]) -> str:
    """Return one line per plain text."""
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def shaded(pieces: Iterable[Shaded]) -> str:
    """Return a text whose pieces are shaded by their values."""
    return "".join(
        escape(text)
        if value is None
        else f'<span style="background:{colour(value)};border-radius:3px" '
        f'title="{escape(title)}">{escape(text)}</span>'
        for text, value, title in pieces
    )


def colour(value: float) -> str:
    """Return the shade of a value from -1 to 1."""
    shade = LOSS_SHADE if value < 0 else SHADE
    return f"rgba({shade},{STRONGEST * min(abs(value), 1):.3f})"


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of HTML cells under plain-text names."""
    cells = [f'<th style="{CELL}">{escape(name)}</th>' for name in names]
    body = [[f'<td style="{CELL}">{cell}</td>' for cell in row] for row in rows]
    body_html = "".join(f"<tr>{''.join(row)}</tr>" for row in (cells, *body))
    return f'<table style="border-collapse:collapse;margin:4px 0">{body_html}</table>'


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
