"""The texts: all of one length, or lengths as they come."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.scale_points import one_token_words, texts_of
from benchmarks.workload import read_workload

SHARES = (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
QUANTILES = (5, 9, 12, 19, 30, 53, 83, 112, 172, 244)
"""Tokens of sentences and paragraphs of software documentation: median 30, mean 42, p99 172."""
LEAST = 3
"""Tokens of a text: a word between the two special ones."""


@dataclass(frozen=True)
class Workload:
    """Texts, and the tokens of each."""

    name: str
    texts: list[str]
    lengths: list[int]

    @property
    def mean_tokens(self) -> float:
        return float(np.mean(self.lengths))


def of_length(length: int, tokens: int, tokenizer: Tokenizer) -> Workload:
    """Texts of one length, so many tokens in all."""
    count = max(1, tokens // length)
    texts = texts_of(length, count, words_of(tokenizer))
    return Workload(f"S = {length}", texts, [length] * count)


def mixed(count: int, tokenizer: Tokenizer, most: int, file: Path | None) -> Workload:
    """So many texts of a file of lines {"text"}, or synthetic ones, of `most` tokens each at most.

    A file's texts are used again until there are enough: nothing in what is measured remembers one.
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
    """Lengths spread over `QUANTILES`, shuffled; the same at every call."""
    shares = (np.arange(count) + 0.5) / count
    lengths = np.exp(np.interp(shares, SHARES, np.log(QUANTILES))).round().astype(int)
    return np.random.default_rng(0).permutation(lengths)


def words_of(tokenizer: Tokenizer) -> Sequence[str]:
    """The vocabulary's words that are one token each."""
    return one_token_words(list(tokenizer.get_vocab(with_added_tokens=False)), tokenizer)
