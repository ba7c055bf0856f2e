"""Workloads: texts of a file, of documentation, of one length, or of mixed lengths."""

from __future__ import annotations

import ast
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

SHARES = (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
QUANTILES = (5, 9, 12, 19, 30, 53, 83, 112, 172, 244)
"""Tokens of sentences and paragraphs of software documentation: median 30, mean 42, p99 172."""
LEAST = 3
"""Minimum tokens of a text: a word between the two special tokens."""


SOURCE = "torch.distributed"
"""Pinned package whose documentation is the default workload: 3,000 English paragraphs."""
PROSE = re.compile(r"[A-Z].{38,}[a-z]\.")


@dataclass(frozen=True)
class Workload:
    """Texts, and the number of tokens of each."""

    name: str
    texts: list[str]
    lengths: list[int]

    @property
    def mean_tokens(self) -> float:
        return float(np.mean(self.lengths))


def of_length(length: int, tokens: int, tokenizer: Tokenizer) -> Workload:
    """Return texts of `length` tokens each, and of about `tokens` tokens in all."""
    count = max(1, tokens // length)
    texts = texts_of(length, count, words_of(tokenizer))
    return Workload(f"S = {length}", texts, [length] * count)


def mixed(count: int, tokenizer: Tokenizer, most: int, file: Path | None) -> Workload:
    """Return `count` texts of at most `most` tokens: synthetic, or of a file of lines {"text"}.

    A file's texts repeat until there are enough: the measured systems do not cache texts.
    """
    if file is None:
        lengths = np.clip(mixed_lengths(count), LEAST, most).tolist()
        words, generator = words_of(tokenizer), random.Random(0)
        texts = [" ".join(generator.choices(words, k=n - 2)) for n in lengths]
        return Workload("mixed", texts, lengths)
    texts = list(itertools.islice(itertools.cycle(read_workload(file, count)), count))
    lengths = [min(len(one.ids), most) for one in tokenizer.encode_batch(texts)]
    return Workload("mixed", texts, lengths)


def mixed_lengths(count: int) -> np.ndarray:
    """Return lengths spread over `QUANTILES`, shuffled; the same at every call."""
    shares = (np.arange(count) + 0.5) / count
    lengths = np.exp(np.interp(shares, SHARES, np.log(QUANTILES))).round().astype(int)
    return np.random.default_rng(0).permutation(lengths)


def words_of(tokenizer: Tokenizer) -> Sequence[str]:
    """Return the vocabulary's words that are one token each."""
    return one_token_words(list(tokenizer.get_vocab(with_added_tokens=False)), tokenizer)


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
