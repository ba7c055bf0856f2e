"""Lines and columns of the keys of a TOML document, which `tomllib` does not report.

https://toml.io/en/v1.0.0
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable

Path = tuple[str, ...]
"""Key below its tables, such as `("model", "minilm", "precision")`."""

_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_BLANKS = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""(?:"{0,2})|\'{3}.*?\'{3}(?:'{0,2})|"(?:[^"\\\n]|\\.)*"|'[^'\n]*\'''',
    re.DOTALL,
)
_OPENING, _CLOSING = re.compile(r"\[{1,2}"), re.compile(r"\]{1,2}")
_SCALAR = re.compile(r"[^,\]}#\n]+")


def places_of(text: str) -> dict[Path, tuple[int, int]]:
    """Return line and column, from 1, of each key and table of a valid TOML document."""
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.places


class _Scanner:
    """Scanner of a document, which keeps where each key begins."""

    def __init__(self, text: str) -> None:
        self.places: dict[Path, tuple[int, int]] = {}
        self._text = text
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._at = 0

    def scan(self) -> None:
        """Read all tables, keys and values."""
        table: Path = ()
        self._read(_GAP)
        while self._at < len(self._text):
            if self._text.startswith("[", self._at):
                start = self._at
                self._read(_OPENING)
                table = self._key((), start)
                self._read(_CLOSING)
            else:
                self._pair(table)
            self._read(_GAP)

    def _pair(self, table: Path) -> None:
        """Read a key and its value."""
        path = self._key(table, self._at)
        self._read(_BLANKS)
        self._at += 1  # =
        self._read(_BLANKS)
        self._value(path)

    def _key(self, table: Path, start: int) -> Path:
        """Read a dotted key; return it below its table."""
        path = table
        while True:
            self._read(_BLANKS)
            path = (*path, _unquoted(self._read(_KEY)))
            self._read(_BLANKS)
            self._keep(path, start)
            if not self._text.startswith(".", self._at):
                return path
            self._at += 1

    def _value(self, path: Path) -> None:
        if self._text.startswith("{", self._at):
            self._each("}", lambda: self._pair(path))
        elif self._text.startswith("[", self._at):
            self._each("]", lambda: self._value(path))
        elif not self._read(_STRING):
            self._read(_SCALAR)

    def _each(self, closing: str, read: Callable[[], None]) -> None:
        """Read the items of an array or inline table."""
        self._at += 1
        while True:
            self._read(_GAP)
            if self._text.startswith((closing, ","), self._at):
                self._at += 1
                if self._text[self._at - 1] == closing:
                    return
            else:
                read()

    def _keep(self, path: Path, start: int) -> None:
        line = bisect_right(self._lines, start)
        self.places.setdefault(path, (line, start - self._lines[line - 1] + 1))

    def _read(self, pattern: re.Pattern[str]) -> str:
        """Return the text that a pattern matches here, and go on behind it."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]


def _unquoted(key: str) -> str:
    """Return a key without its quotes."""
    return next(iter(tomllib.loads(f"{key} = 0"))) if key[:1] in {'"', "'"} else key
