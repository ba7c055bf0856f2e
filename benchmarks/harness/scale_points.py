"""Points that `benchmarks.scale` measures, and the texts that each sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from benchmarks.harness.texts import one_token_words, texts_of

LENGTHS, BUDGETS = (16, 32, 64, 128, 256, 512), (128, 256, 512, 1024, 2048, 4096)
CONNECTIONS = (1, 4, 16, 64, 256)
TEXTS = 256
"""Number of the workload's texts in a sample."""
TOKENS, LEAST_TEXTS = 12288, 48
"""Approximate tokens of a sample of one length, and its minimum number of texts."""
LONGEST, MODEL_LIMIT = 512, 256
"""Maximum tokens of a text: on the length axis; on other axes (the model's own maximum)."""


@dataclass(frozen=True)
class Point:
    """Setting of one axis, and the load that is sent."""

    axis: str
    value: int
    texts: list[str]
    tokens: list[int]
    """Tokens of each text."""
    cores: int
    connections: int = 64
    flags: tuple[str, ...] = ()


def points(workload: Sequence[str], tokenizer: Tokenizer, cores: int) -> Iterator[Point]:
    """Yield the points of every axis, for a machine of `cores` cores."""
    texts = list(workload[:TEXTS])
    tokens = [min(len(one.ids), MODEL_LIMIT) for one in tokenizer.encode_batch(texts)]
    words = one_token_words(workload, tokenizer)
    for length in LENGTHS:
        count = max(LEAST_TEXTS, TOKENS // length)
        made, flags = texts_of(length, count, words), ("--max-length", str(LONGEST))
        yield Point("length", length, made, [length] * count, cores, 16, flags)
    for budget in BUDGETS:
        flags = ("--max-batch-tokens", str(budget))
        yield Point("budget", budget, texts, tokens, cores, flags=flags)
    for connections in CONNECTIONS:
        yield Point("connections", connections, texts, tokens, cores, connections)
    for used in sorted({1, cores}):
        yield Point("cores", used, texts, tokens, used)
