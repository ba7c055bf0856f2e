"""Map as HTML for a notebook: a shaded table without scripts or network access."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headscope.display import SHADE, Shown, matrix_frame, shape_of
from headscope.errors import HeadscopeError

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_TOKENS = 48
"""Maximum number of tokens shown; longer texts are cut, because 512² cells would be 25 MB of
HTML."""
CELL = "width:11px;height:11px;min-width:11px;padding:0;border:1px solid rgba(127,127,127,.15)"
PLAIN = "padding:0 3px;font-weight:normal;border:0;background:none"


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
        shown = self.tokens[:MAX_TOKENS]
        lines = [about, self.title] if about else [self.title]
        size = max(len(self.tokens), len(self.keys or ()))
        if size > MAX_TOKENS:
            lines.append(f"the first {MAX_TOKENS} of {size} tokens")
        head = "".join(f"<div>{escape(line)}</div>" for line in lines)
        body = self._tokens(shown) if self.weights is None else self._table(shown, self.weights)
        return f'<div style="font-size:12px;overflow:auto">{head}{body}</div>'

    def to_pandas(self) -> DataFrame:
        """Return a table of the weights, queries × keys.

        Raises:
            ImportError: pandas is not installed.
            HeadscopeError: there are no weights.

        """
        if self.weights is None:
            raise HeadscopeError("the map has no weights")
        keys = self.tokens if self.keys is None else self.keys
        return matrix_frame(self.weights, self.tokens, keys)

    def _facts(self) -> list[str]:
        shape = (len(self.tokens),) if self.weights is None else self.weights.shape
        return [repr(self.title), shape_of("weights", shape)]

    def _repr_html_(self) -> str:
        return self.html()

    def _tokens(self, tokens: tuple[str, ...]) -> str:
        names = " ".join(f"<code>{escape(token)}</code>" for token in tokens)
        return f'<div style="margin-top:4px">{names}</div>'

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
                f'<td style="{CELL};background:rgba({SHADE},{alpha:.3f})" '
                f'title="{name} → {target}: {value:.3f}"></td>'
                for target, value, alpha in zip(columns, values, alphas, strict=True)
            )
            rows.append(f'<tr><th style="{PLAIN};text-align:right">{name}</th>{cells}</tr>')
        return f'<table style="border-collapse:collapse;margin-top:4px">{"".join(rows)}</table>'
