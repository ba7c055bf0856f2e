"""Texts to measure with: of a file, of documentation, or of one length."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from tokenizers import Tokenizer

SOURCE = "torch.distributed"
"""Pinned package whose documentation is the default workload: 3,000 English paragraphs."""
PROSE = re.compile(r"[A-Z].{38,}[a-z]\.")


def read_workload(path: Path | None, count: int) -> list[str]:
    """Return `count` different texts, spread evenly over a file of lines {"text"} or `SOURCE`."""
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()
        candidates: Iterator[str] = (json.loads(line)["text"] for line in lines)
    else:
        candidates = paragraphs(SOURCE)
    texts = list(dict.fromkeys(candidates))
    if count >= len(texts):
        return texts
    return [texts[i * len(texts) // count] for i in range(count)]


def paragraphs(package: str) -> Iterator[str]:
    """Yield the paragraphs of prose in a package's docstrings."""
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


def one_token_words(workload: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return the workload's words that are one token each, whatever words are beside them."""
    words = sorted({word for text in workload for word in text.lower().split() if word.isalpha()})
    encoded = tokenizer.encode_batch(words, add_special_tokens=False)
    return [word for word, one in zip(words, encoded, strict=True) if len(one.ids) == 1]


def texts_of(length: int, count: int, words: Sequence[str]) -> list[str]:
    """Return different texts of exactly `length` tokens, [CLS] and [SEP] included."""
    generator = random.Random(length)
    return [" ".join(generator.choices(words, k=length - 2)) for _ in range(count)]
