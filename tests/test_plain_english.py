"""Summaries in plain English: marks of sentences that a reader has to solve may only become fewer.

A mark is a place to read again, not a verdict: a few sentences are plain in spite of one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "clients", "deploy", "model", "service", "testing", "trials")
MOST = 0
"""Number of summaries with a mark."""
MARKS = (
    r"^(It|Its|One|Ones|Such|That|The same|These|They|This one|Those|Whose)\b",
    r"^(Of|What|Who|Whoever)\b",
    r"\b(that|those|the ones?) (of|that|which|with|without)\b",
    r"\b(nobody|somebody|anybody)('s)?\b|\bof (ours|theirs)\b",
    r"\b(as|so|that) (few|many|much)\b",
    r"\b(hears?|tells|told)\b|\bis said\b",
    r"\b(are|is|was|were) no (?!longer\b|more\b)",
)
"""Pointing instead of naming, riddles of number and person, verbs that have a standard name."""
_MARK = re.compile("|".join(MARKS))


def summaries(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and first sentence of every docstring and attribute docstring of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    text = " ".join(str(statement.value.value).split())
                    yield statement.lineno, re.split(r"(?<=[.!?])\s", text)[0]


def marked(folder: Path) -> list[str]:
    """Return `file:line: summary` of every summary with a mark below a folder."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {summary}"
        for path in sorted(folder.rglob("*.py"))
        for line, summary in summaries(path.read_text(encoding="utf-8"))
        if _MARK.search(summary)
    ]


def test_marked_summaries_only_become_fewer() -> None:
    found = [place for folder in FOLDERS for place in marked(ROOT / folder)]
    assert len(found) <= MOST, "rewrite the new ones of these summaries:\n" + "\n".join(found)
    assert len(found) == MOST, f"lower MOST to {len(found)}"


@pytest.mark.parametrize(
    ("summary", "has_mark"),
    [
        ("Those of an artifact.", True),
        ("Of every artifact of ours.", True),
        ("Tokens that fill up a query of so many.", True),
        ("The client is gone: whoever works for it is told.", True),
        ("Names that are no settings.", True),
        ("Load the vector pipeline of an artifact.", False),
        ("Indices of a query's expansion tokens, which are masked as keys.", False),
        ("Log a warning for each capability that a foreign graph lacks.", False),
    ],
)
def test_marks(summary: str, *, has_mark: bool) -> None:
    ((_, found),) = summaries(f'"""{summary} More."""')
    assert found == summary
    assert bool(_MARK.search(found)) == has_mark
