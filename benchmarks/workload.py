"""The texts that are sent, and what they cost at least."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

SOURCE = "torch.distributed"
"""The default workload is this pinned package's documentation: English prose, 3,000 paragraphs."""
PROSE = re.compile(r"[A-Z].{38,}[a-z]\.")
FLOP_PER_TOKEN = 21.23e6
"""Of all-MiniLM-L6-v2's matrix products: 6 · (4·384² + 2·384·1536) multiply-adds, twice."""
FLOP_PER_TOKEN_PAIR = 9216
"""Of its attention: 6 layers · 2 products · 384 features, twice."""


def read_workload(path: Path | None, count: int) -> list[str]:
    """So many different texts, spread evenly over a file of lines {"text"} or over `SOURCE`."""
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()
        found: Iterator[str] = (json.loads(line)["text"] for line in lines)
    else:
        found = paragraphs(SOURCE)
    texts = list(dict.fromkeys(found))
    if count >= len(texts):
        return texts
    return [texts[i * len(texts) // count] for i in range(count)]


def paragraphs(package: str) -> Iterator[str]:
    """The paragraphs of prose in a package's docstrings."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for part in (ast.get_docstring(node) or "").split("\n\n"):
                    text = " ".join(part.split())
                    if PROSE.fullmatch(text):
                        yield text


def workload_flop(lengths: list[int]) -> float:
    """What texts of so many tokens cost without any padding."""
    return sum(n * (FLOP_PER_TOKEN + FLOP_PER_TOKEN_PAIR * n) for n in lengths)
