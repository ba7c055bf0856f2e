"""Speed of artifacts on this machine, their verdicts, and the fastest precision of a model.

Pairs are CSV lines of `sentence1,sentence2,score`, as in the STS Benchmark (Cer et al. 2017,
https://arxiv.org/abs/1708.00055).
"""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from model.artifact.manifest import Artifact
from model.config.precision import USES, Precision
from model.errors import ArtifactError, ModelError
from model.numerics.similarity import LARGEST_LOSS, bounds_line, spearman
from service.artifacts.opening import open_artifact, precision_note
from service.engines.contract import Floats
from service.engines.onnx import CUDA, OnnxEngine
from service.files.local import LocalEncoder
from service.files.options import Array, Encoding, Refused
from service.settings import Settings

MIN_SPEEDUP = 1.05
"""Minimum speedup of a less exact precision; smaller differences are within the noise of timing."""
ROUNDS = 7
ROUND_SECONDS = 0.5
"""Minimum time of an embedder in a round, if there are enough texts."""
Pairs = Sequence[tuple[str, str, float]]
Embedder = Callable[[Sequence[str]], object]
Progress = Callable[[str], None]


class Measured(NamedTuple):
    """Measurements of an artifact: medians over the rounds, and the ranking of pairs."""

    artifact: Artifact
    per_second: float
    ratio: float
    """Ratio of the rate to the first artifact's."""
    spearman: float | None = None


def open_precisions(settings: Settings, progress: Progress) -> list[Artifact]:
    """Open a model's exports in the precisions that may be the fastest here, fp32 first."""

    def opened(precision: Precision) -> Artifact:
        changed = {"precision": precision, "allow_unverified": True}  # the table has the verdict
        return open_artifact(settings.model_copy(update=changed), progress)

    artifacts = [opened("fp32")]
    on_device = _engine(artifacts[0], settings).provider == CUDA
    others: tuple[Precision, ...] = ("fp16",) if on_device else ("bf16", "int8")
    for precision in others:
        try:
            if (reason := precision_note(precision)) is None:
                artifacts.append(opened(precision))
        except ArtifactError:
            raise
        except (ModelError, ValueError) as error:
            reason = str(error)
        if reason:
            progress(f"{precision} is left out: {reason}")
    return artifacts


def measure(artifacts: Sequence[Artifact], settings: Settings, pairs: Pairs) -> list[Measured]:
    """Time artifacts in turn on the pairs' sentences, or on typical texts, and rank the pairs.

    All artifacts are loaded together, and each uses all cores.
    """
    from model.export.calibration import TEXTS

    for artifact in artifacts:
        if artifact.manifest.images is not None and artifact.vision is None:
            raise ValueError(f"{artifact.manifest.model} encodes pictures: bench is for texts")
    encoding = Encoding(truncate=True, normalize=True)
    with contextlib.ExitStack() as closing:
        ways = []
        for artifact in artifacts:
            encoder = LocalEncoder(artifact, settings, encoding, _engine(artifact, settings))
            closing.callback(encoder.close)
            ways.append(partial(embed, encoder))
        sentences = [text for pair in pairs for text in pair[:2]]
        rates = in_turn(sentences or TEXTS.read_text(encoding="utf-8").splitlines(), ways)
        ranked = [ranking(way(sentences), pairs) if pairs else None for way in ways]
    return [
        Measured(artifact, *rate, spearman)
        for artifact, rate, spearman in zip(artifacts, rates, ranked, strict=True)
    ]


def in_turn(
    texts: Sequence[str],
    embedders: Sequence[Embedder],
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[float, float]]:
    """Return the rate of each embedder, and its ratio to the first one's, over interleaved rounds.

    Other load slows a whole round: the median of ratios is more robust than a ratio of medians.
    """
    chosen = workload(texts, embedders[0], clock)
    for embedder in embedders:
        embedder(chosen)
    seconds: list[list[float]] = [[] for _ in embedders]
    for number in range(ROUNDS):
        for turn in range(len(embedders)):
            index = (number + turn) % len(embedders)
            started = clock()
            embedders[index](chosen)
            seconds[index].append(clock() - started)
    return [
        (
            median(len(chosen) / elapsed for elapsed in times),
            median(first / elapsed for first, elapsed in zip(seconds[0], times, strict=True)),
        )
        for times in seconds
    ]


def workload(texts: Sequence[str], embedder: Embedder, clock: Callable[[], float]) -> Sequence[str]:
    """Return evenly spaced texts that take at least `ROUND_SECONDS`, or all texts."""
    count = 8
    while count < len(texts):
        chosen = [texts[index * len(texts) // count] for index in range(count)]
        embedder(chosen)  # the first run of new shapes is slow
        started = clock()
        embedder(chosen)
        if clock() - started >= ROUND_SECONDS:
            return chosen
        count *= 2
    return texts


def embed(encoder: LocalEncoder, texts: Sequence[str]) -> Floats:
    """Return the vectors `[n, D]` of n texts."""
    vectors: dict[int, Array] = {}
    for batch in encoder.begin(texts):
        for index, outcome in batch.result():
            if isinstance(outcome, Refused):
                raise ValueError(f"{texts[index][:80]!r}: {outcome.problem}")
            vectors[index] = outcome[0]
    return np.array([vectors[index] for index in range(len(texts))], np.float32)


def fastest(measured: Sequence[Measured]) -> str:
    """Return a line about the fastest precision whose vectors passed and that ranks pairs well.

    A less exact one must be `MIN_SPEEDUP` times as fast as a more exact one before it.
    """
    best, reference = None, measured[0].spearman or 0.0
    for one in measured:
        passed = one.artifact.manifest.verification.vectors.passed
        if not passed or reference - (one.spearman or 0.0) > LARGEST_LOSS:
            continue
        if best is None or one.ratio > MIN_SPEEDUP * best.ratio:
            best = one
    if best is None:
        return "no precision passed the verification of vectors"
    precision = best.artifact.manifest.precision
    return f"fastest: --precision {precision}, {best.ratio:.2f} times fp32's rate"


def table(measured: Sequence[Measured]) -> list[str]:
    """Return the lines of a table of artifacts, then the bounds and what failed."""
    rows = [("artifact", "precision", "texts/s", "× first", *USES, "Spearman")]
    failed = []
    for one in measured:
        record, precision = one.artifact.manifest.verification, one.artifact.manifest.precision
        rate, ratio = f"{one.per_second:.0f}", f"{one.ratio:.2f}"
        vectors, heads = ("passed" if record.verdict(use).passed else "FAILED" for use in USES)
        score = "" if one.spearman is None else f"{100 * one.spearman:.2f}"
        rows.append((one.artifact.folder.name, precision, rate, ratio, vectors, heads, score))
        if record.failed:
            failed.append(f"FAILED, {precision}: {record.failed}")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    bounds = dict.fromkeys(bounds_line(one.artifact.manifest.precision) for one in measured)
    return [*lines, *bounds, *failed]


def read_pairs(path: Path) -> Pairs:
    """Read two sentences and their score from each of at least two lines of a CSV file."""
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


def ranking(vectors: Floats, pairs: Pairs) -> float:
    """Return the rank correlation of the pairs' scores with the cosines of their unit vectors."""
    cosines = (vectors[0::2] * vectors[1::2]).sum(axis=1)
    return spearman(cosines, np.array([pair[2] for pair in pairs]))


def _engine(artifact: Artifact, settings: Settings) -> OnnxEngine:
    return OnnxEngine(artifact, settings.device, settings.threads, settings.device_id or 0)
