"""STS-B: pairs of sentences with human scores, and the rank correlation of vectors with them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.numerics.batch import pack
from model.numerics.pooling import TextPooling
from model.runtimes.registry import load_runtime

MAX_TOKENS = 256
Pair = tuple[str, str, float]


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs of sentences with their score, one a line."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(first, second, float(score)) for first, second, score in csv.reader(file)]


def sentences(pairs: Sequence[Pair]) -> list[str]:
    """Return all first sentences, then all second ones."""
    return [pair[column] for column in (0, 1) for pair in pairs]


def embed(artifact: Artifact, texts: Sequence[str]) -> np.ndarray:
    """Return unit vectors `[n, H]` by mean pooling, in batches of 64 texts of similar length."""
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    tokenizer.enable_truncation(MAX_TOKENS)
    encodings = tokenizer.encode_batch(list(texts))
    order = sorted(range(len(texts)), key=lambda i: len(encodings[i].ids))
    config = artifact.manifest.config
    runtime = load_runtime(artifact)
    vectors = np.empty((len(texts), config.hidden_size), np.float32)
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        batch = pack([(encodings[i].ids, encodings[i].type_ids) for i in chosen])
        asked = [
            TextPooling(row, config.num_hidden_layers, "mean", 0, config.hidden_size)
            for row in range(len(chosen))
        ]
        _, vectors[chosen] = runtime.encode(batch, [], asked)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def spearman(vectors: np.ndarray, pairs: Sequence[Pair]) -> float:
    """Return the rank correlation ×100 of the pairs' cosines with their scores."""
    from scipy.stats import spearmanr  # a second, of every run of pytest

    first, second = np.split(vectors, 2)
    return float(100 * spearmanr((first * second).sum(axis=1), [p[2] for p in pairs]).statistic)
