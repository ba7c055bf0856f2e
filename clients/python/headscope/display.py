"""The short form of results, as text and as HTML for a notebook.

The HTML has neither scripts nor anything from the network. It takes the notebook's own colours,
light or dark, and shades over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

SHADE, LOSS_SHADE = "31,119,180", "214,98,20"
"""Colours of values above and below zero."""
STRONGEST = 0.6
"""Opacity of the largest value: text on it is readable in a light and in a dark notebook."""
SHORT = 40
"""Characters of a text in a line about a result."""
LONG = 300
"""Characters of a text in a notebook, where they have no shades."""
Shaded = tuple[str, float | None, str]
"""Characters, their value from -1 to 1, and what is shown over them; None has no shade."""
BORDER = "border:1px solid rgba(127,127,127,.3)"
CELL = f"{BORDER};padding:2px 8px;text-align:left;vertical-align:top;background:none"


class Shown:
    """Result with a short form: its type and a few facts, no arrays."""

    __slots__ = ()

    def _facts(self) -> list[str]:
        """Return what a line about the result says."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._facts())})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the facts, where a result has no picture of its own."""
        return box([lines([", ".join(self._facts())])])


def start_of(text: str, most: int) -> str:
    """Return a text, or its start and an ellipsis where it has more characters."""
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
    """Return a line of plain text each."""
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
    """Return a table of cells that are HTML already, under names that are plain text."""
    cells = [f'<th style="{CELL}">{escape(name)}</th>' for name in names]
    body = [[f'<td style="{CELL}">{cell}</td>' for cell in row] for row in rows]
    every = "".join(f"<tr>{''.join(row)}</tr>" for row in (cells, *body))
    return f'<table style="border-collapse:collapse;margin:4px 0">{every}</table>'
