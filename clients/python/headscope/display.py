"""Display of results: heat maps, HTML in notebooks, and pandas tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headscope.errors import HeadscopeError

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
MAX_TOKENS = 48
"""Maximum number of tokens shown; longer texts are cut, because 512² cells would be 25 MB of
HTML."""
MAP_CELL = "width:11px;height:11px;min-width:11px;padding:0;border:1px solid rgba(127,127,127,.15)"
PLAIN = "padding:0 3px;font-weight:normal;border:0;background:none"


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


def frame(data: object, rows: object = None, columns: Sequence[str] | None = None) -> DataFrame:
    """Return a pandas table; `rows` and `columns` are names for a matrix."""
    return _pandas().DataFrame(data, index=rows, columns=columns)


def vectors_frame(
    vectors: NDArray[np.generic], rows: Sequence[str], layers: Sequence[int]
) -> DataFrame:
    """Return a table of vectors `[rows, D]`, or `[layers, rows, D]` indexed by layer and row."""
    if not layers:
        return frame(vectors, rows)
    index = _pandas().MultiIndex.from_product([layers, rows], names=["layer", None])
    return frame(vectors.reshape(len(index), -1), index)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas needs pandas: pip install pandas") from error
    return pandas


@dataclass(frozen=True, eq=False, repr=False)
class HeatMap(Shown):
    """Weights between the tokens of one text, queries × keys."""

    title: str
    tokens: tuple[str, ...]
    """Tokens of the rows."""
    weights: NDArray[np.floating] | None
    """`[Q, K]`; only the tokens are shown when None."""
    keys: tuple[str, ...] | None = None
    """Tokens of the columns; the rows' tokens when None."""

    def html(self, about: str = "") -> str:
        """Return a table whose darkest cell is the largest weight, with `about` above it."""
        size = max(len(self.tokens), len(self.keys or ()))
        cut = [f"the first {MAX_TOKENS} of {size} tokens"] if size > MAX_TOKENS else []
        head = lines([*([about] if about else []), self.title, *cut])
        if self.weights is None:
            names = " ".join(f"<code>{escape(t)}</code>" for t in self.tokens[:MAX_TOKENS])
            body = f'<div style="margin-top:4px">{names}</div>'
        else:
            body = self._table(self.tokens[:MAX_TOKENS], self.weights)
        return f'<div style="font-size:12px;overflow:auto">{head}{body}</div>'

    def to_pandas(self) -> DataFrame:
        """Return a table of the weights, queries × keys."""
        if self.weights is None:
            raise HeadscopeError("the map has no weights")
        return frame(self.weights, self.tokens, self.tokens if self.keys is None else self.keys)

    def _facts(self) -> list[str]:
        shape = (len(self.tokens),) if self.weights is None else self.weights.shape
        return [repr(self.title), shape_of("weights", shape)]

    def _repr_html_(self) -> str:
        return self.html()

    def _table(self, tokens: tuple[str, ...], weights: NDArray[np.floating]) -> str:
        keys = tokens if self.keys is None else self.keys[:MAX_TOKENS]
        part = np.asarray(weights, np.float32)[: len(tokens), : len(keys)]
        shades = part / (float(part.max(initial=0)) or 1)
        names, columns = ([escape(token) for token in axis] for axis in (tokens, keys))
        turned = f"{PLAIN};writing-mode:vertical-rl;text-align:left;vertical-align:bottom"
        top = "".join(f'<th style="{turned}">{name}</th>' for name in columns)
        rows = [f'<tr><th style="{PLAIN}"></th>{top}</tr>']
        for name, values, alphas in zip(names, part, shades, strict=True):
            cells = "".join(
                f'<td style="{MAP_CELL};background:rgba({SHADE},{alpha:.3f})" '
                f'title="{name} → {target}: {value:.3f}"></td>'
                for target, value, alpha in zip(columns, values, alphas, strict=True)
            )
            rows.append(f'<tr><th style="{PLAIN};text-align:right">{name}</th>{cells}</tr>')
        return f'<table style="border-collapse:collapse;margin-top:4px">{"".join(rows)}</table>'
