"""Evaluation of artifacts: rank correlation on scored sentence pairs, and speed on this machine.

Pairs are CSV lines of `sentence1,sentence2,score`, as in the STS Benchmark (Cer et al. 2017,
https://arxiv.org/abs/1708.00055).
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.artifact.manifest import TOKENIZER, Artifact, Manifest
from model.artifact.vectors import TextVectors
from model.config.encoder import patches_of
from model.config.precision import USES
from model.numerics.bounds import bounds_line
from model.numerics.similarity import spearman
from model.runtimes.contract import Device
from service.engines.contract import Engine, Floats, Pooling, TextTask
from service.engines.onnx import OnnxEngine
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.measuring.timing import Rate, in_turn

MOST_CHARACTERS = 10**6


@dataclass(frozen=True)
class Score:
    """Score of an artifact."""

    pairs: int
    spearman: float
    """Rank correlation of cosines and scores, −1 … 1."""
    texts_per_second: float
    """Throughput including tokenisation, with the engine's number of concurrent batches."""


@dataclass(frozen=True)
class Standing:
    """Score of an artifact and its speed relative to the first artifact."""

    spearman: float
    rate: Rate


class Embedder:
    """Embedder of texts as unit vectors, by an artifact's prompt and pooling; cuts long texts.

    For an encoder of pictures, it embeds the pixels of pictures' tokens.
    """

    def __init__(self, artifact: Artifact, engine: Engine) -> None:
        manifest = artifact.manifest
        limits = Limits(manifest.sentence.max_length, MOST_CHARACTERS)
        self._sentence, self._config = manifest.sentence, manifest.config
        self._tokenizer = None
        if manifest.images is None:
            self._tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, limits)
        self._vectors = TextVectors.of(artifact)
        self._engine = engine

    def __call__(self, inputs: Sequence[str | Floats]) -> Floats:
        """Embed n inputs as `[n, D]`, with the engine's number of concurrent batches.

        Args:
            inputs: texts, or `[S, F]` pixels of each picture's tokens.

        """
        tasks = self._tasks(inputs)
        vectors = np.empty((len(tasks), self._vectors.kept()), np.float32)

        def run(batch: list[int]) -> None:
            outputs = self._engine.run([tasks[i] for i in batch])
            pooled = [output.pooled for output in outputs if output.pooled is not None]
            vectors[batch] = self._vectors.finish(pooled, normalize=True)

        with ThreadPoolExecutor(self._engine.concurrency) as threads:
            lengths = [task.tokens for task in tasks]
            list(threads.map(run, batches_by_length(lengths, self._engine.batch_tokens)))
        return vectors

    def _tasks(self, inputs: Sequence[str | Floats]) -> list[TextTask]:
        """Return the task of each input."""
        sentence, layer = self._sentence, self._config.num_hidden_layers
        if self._tokenizer is None:
            ids = np.array(patches_of(self._config).token_ids, np.int64)
            pooling = Pooling(layer, sentence.pooling)
            return [
                TextTask(ids, np.zeros_like(ids), pooling=pooling, pixels=pixels)
                for pixels in inputs
                if not isinstance(pixels, str)
            ]
        texts = [text for text in inputs if isinstance(text, str)]
        return [
            TextTask(
                text.input_ids,
                text.segment_ids,
                pooling=Pooling(layer, sentence.pooling, text.first_pooled(sentence)),
            )
            for text in self._tokenizer.tokenize(texts, Options(truncate=True))
        ]


def score(artifact: Artifact, engine: Engine, pairs: Path) -> Score:
    """Embed both sentences of every pair, and correlate their cosines with the scores.

    Raises:
        ValueError: a line is not two sentences and a number, there are fewer than two lines, or the
            artifact encodes pictures.

    """
    check_reads_texts(artifact)
    rows = read_pairs(pairs)
    embed = Embedder(artifact, engine)
    started = time.perf_counter()
    vectors = embed(sentences(rows))
    seconds = time.perf_counter() - started
    return Score(
        pairs=len(rows),
        spearman=ranking(vectors, rows),
        texts_per_second=len(vectors) / seconds,
    )


def compare(artifacts: Sequence[Artifact], device: Device, pairs: Path) -> list[Standing]:
    """Score several artifacts on pairs, and measure their speed relative to the first.

    All artifacts are loaded together, and each uses all cores.

    Raises:
        ValueError: as `score` raises it.
        ModelError: an artifact cannot be loaded, or the device does not exist.

    """
    for artifact in artifacts:
        check_reads_texts(artifact)
    rows = read_pairs(pairs)
    texts = sentences(rows)
    embedders = [Embedder(artifact, OnnxEngine(artifact, device)) for artifact in artifacts]
    ranked = [ranking(embed(texts), rows) for embed in embedders]
    rates = in_turn(texts, embedders)
    return [Standing(correlation, rate) for correlation, rate in zip(ranked, rates, strict=True)]


def check_reads_texts(artifact: Artifact) -> None:
    """Raise an error for an artifact that cannot be scored on pairs of sentences.

    Raises:
        ValueError: it encodes pictures.

    """
    if artifact.manifest.images is not None:
        raise ValueError(
            f"{artifact.manifest.model} encodes pictures, and pairs are sentences: score a model "
            "of texts"
        )


def standings(artifacts: Sequence[Artifact], compared: Sequence[Standing]) -> list[str]:
    """Return the lines of a table of artifacts, followed by their verdicts."""
    header = ("artifact", "precision", "Spearman", "texts/s", "× first", *USES)
    rows = [
        (
            artifact.folder.name,
            artifact.manifest.precision,
            f"{100 * standing.spearman:.2f}",
            f"{standing.rate.per_second:.0f}",
            f"{standing.rate.ratio:.2f}",
            *words(artifact.manifest),
        )
        for artifact, standing in zip(artifacts, compared, strict=True)
    ]
    return [*aligned([header, *rows]), *verdicts([artifact.manifest for artifact in artifacts])]


def words(manifest: Manifest) -> list[str]:
    """Return the verdict on each use as one word."""
    uses = (manifest.verification.verdict(use) for use in USES)
    return ["passed" if verdict.passed else "FAILED" for verdict in uses]


def verdicts(manifests: Sequence[Manifest]) -> list[str]:
    """Return lines with the tolerances of each precision, and the failures of each artifact."""
    bounds = dict.fromkeys(
        bounds_line(manifest.precision) for manifest in manifests if not manifest.foreign
    )
    failed = [
        f"FAILED, {manifest.precision}: {manifest.verification.failed}"
        for manifest in manifests
        if manifest.verification.failed
    ]
    return [*bounds, *failed]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's rows as lines, the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]


def read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Read two sentences and their score from each line of a CSV file.

    Raises:
        ValueError: a line is not two sentences and a number, or there are fewer than two lines.

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


def sentences(rows: Sequence[tuple[str, str, float]]) -> list[str]:
    """Return both sentences of each pair, in order."""
    return [text for row in rows for text in row[:2]]


def ranking(vectors: Floats, rows: Sequence[tuple[str, str, float]]) -> float:
    """Return the rank correlation of the pairs' cosines and scores.

    Args:
        vectors: unit vectors of the sentences, in the order of `sentences`.
        rows: pairs and their scores.

    """
    cosines = (vectors[0::2] * vectors[1::2]).sum(axis=1)
    return spearman(cosines, np.array([row[2] for row in rows]))


def batches_by_length(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Group the indices of texts by length, with at most `most_tokens` tokens in each group.

    A longer text is a group of its own.
    """
    batches: list[list[int]] = [[]]
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches[-1] and tokens + lengths[index] > most_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(index)
        tokens += lengths[index]
    return batches
