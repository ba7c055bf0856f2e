"""What an artifact is worth on this machine: how well it ranks scored pairs, and how fast.

The pairs are lines of `sentence1,sentence2,score`, as the STS Benchmark has them (Cer et al. 2017,
https://arxiv.org/abs/1708.00055).
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from service.engines.contract import Engine, Floats, Pooling, TextTask
from service.inference.tokenizer import Limits, Options, TextTokenizer

MOST_CHARACTERS = 10**6


@dataclass(frozen=True)
class Score:
    """The outcome."""

    pairs: int
    spearman: float
    """Rank correlation of cosines and scores, −1 to 1."""
    texts_per_second: float
    """Tokenising included, one batch after another."""


def score(artifact: Artifact, engine: Engine, pairs: Path) -> Score:
    """Embed both sides of every pair, and hold the cosines against the scores.

    Raises:
        ValueError: a line is not two sentences and a number, or there are too few lines.

    """
    rows = read_pairs(pairs)
    started = time.perf_counter()
    vectors = embed(artifact, engine, [text for row in rows for text in row[:2]])
    seconds = time.perf_counter() - started
    cosines = (vectors[0::2] * vectors[1::2]).sum(axis=1)
    return Score(
        pairs=len(rows),
        spearman=spearman(cosines, np.array([row[2] for row in rows])),
        texts_per_second=len(vectors) / seconds,
    )


def read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Two sentences and their score from each line of a CSV file.

    Raises:
        ValueError: a line is anything else, or there are fewer than two.

    """
    rows = []
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.reader(file), 1):
            try:
                first, second, value = row
                rows.append((first, second, float(value)))
            except ValueError:
                raise ValueError(f"{path}: line {number} is not sentence,sentence,score") from None
    if len(rows) < 2:
        raise ValueError(f"{path}: at least two pairs are needed")
    return rows


def embed(artifact: Artifact, engine: Engine, texts: Sequence[str]) -> Floats:
    """Unit vectors of all texts, by the checkpoint's own pooling; texts too long are cut."""
    sentence = artifact.manifest.sentence
    limits = Limits(sentence.max_length, MOST_CHARACTERS)
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), sentence, limits)
    layer, finish = artifact.manifest.config.num_hidden_layers, TextVectors.of(artifact)
    tasks = [
        TextTask(
            text.input_ids,
            text.segment_ids,
            pooling=Pooling(layer, sentence.pooling, text.first_pooled(sentence)),
        )
        for text in tokenizer.tokenize(texts, Options(truncate=True))
    ]
    vectors = np.empty((len(tasks), finish.kept()), np.float32)
    for batch in _batches(tasks, engine.batch_tokens):
        outputs = engine.run([tasks[i] for i in batch])
        pooled = [output.pooled for output in outputs if output.pooled is not None]
        vectors[batch] = finish.finish(pooled, normalize=True)
    return vectors


def spearman(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of theirs."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _batches(tasks: Sequence[TextTask], most_tokens: int) -> list[list[int]]:
    """Indices of tasks of like length, at most so many tokens together."""
    batches: list[list[int]] = [[]]
    tokens = 0
    for index in sorted(range(len(tasks)), key=lambda i: tasks[i].tokens):
        if batches[-1] and tokens + tasks[index].tokens > most_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(index)
        tokens += tasks[index].tokens
    return batches
