"""Selection of the fastest precision on this machine, by measurement.

Each candidate is exported and verified, then all are timed in turn on typical texts:
docs/decisions/0017-precision-chosen-by-measurement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.artifact.manifest import Artifact
from model.artifact.verification import VerificationRecord
from model.config.encoder import patches_of
from model.config.precision import USES, Precision
from model.errors import ArtifactError, ModelError
from model.numerics.bounds import LARGEST_LOSS
from service.artifacts.opening import Progress
from service.artifacts.precision import precision_note
from service.engines.contract import Floats
from service.engines.onnx import CUDA, OnnxEngine
from service.measuring.evaluation import (
    Embedder,
    aligned,
    check_reads_texts,
    ranking,
    read_pairs,
    sentences,
    verdicts,
    words,
)
from service.measuring.timing import Rate, in_turn
from service.settings import Settings
from service.system.distribution import is_installed

Export = Callable[[Precision, Artifact | None], Artifact]
"""Function from a precision, and the float32 export if it exists, to an export."""
CPU_PRECISIONS: tuple[Precision, ...] = ("bf16", "int8")
"""Precisions that are fast on CPUs with suitable instructions, by falling exactness."""
MIN_SPEEDUP = 1.05
"""Minimum speedup of a less exact precision; smaller differences are within the noise of timing."""


_QUALITY = {
    "rank_correlation": "ρ of similarities",
    "neighbour_recall": "recall@10",
    "mean_cosine": "mean cosine",
    "low_cosine": "5 %",
    "least_cosine": "least",
}
"""Field of `Similarity` → heading of its column in a table."""


@dataclass(frozen=True)
class Candidate:
    """Export of one precision, and its measurements."""

    artifact: Artifact
    rate: Rate
    spearman: float | None = None
    """Rank correlation with the scores of pairs, if pairs are given."""
    loss: float = 0.0
    """Rank correlation of fp32 minus the candidate's."""

    @property
    def precision(self) -> Precision:
        """Precision of the artifact."""
        return self.artifact.manifest.precision

    @property
    def passed(self) -> bool:
        """Whether the vectors passed their verification and rank pairs nearly as well as fp32's."""
        return self.artifact.manifest.verification.vectors.passed and self.loss <= LARGEST_LOSS


def measure(
    settings: Settings, export: Export, progress: Progress, pairs: Path | None = None
) -> list[Candidate]:
    """Export all candidates, float32 first, and time them in turn.

    Args:
        settings: settings of the device and the threads.
        export: function that returns the artifact of a precision.
        progress: function called with a line for each skipped candidate, and the lines of a table.
        pairs: CSV file of scored pairs for each candidate, optional.

    Raises:
        ModelError: float32 cannot be exported, or a file cannot be written.
        ValueError: the file of pairs is invalid.

    """
    rows = read_pairs(pairs) if pairs else []
    base = export("fp32", None)
    if rows:
        check_reads_texts(base)
    engine = _engine(base, settings)
    artifacts, embedders = [base], [Embedder(base, engine)]
    for precision in candidates(engine.provider, progress):
        try:
            artifact = export(precision, None if precision == "fp16" else base)
            embedders.append(Embedder(artifact, _engine(artifact, settings)))
        except ArtifactError:
            raise
        except ModelError as error:
            progress(f"{precision} is left out: {error}")
        else:
            artifacts.append(artifact)
    progress(f"timing {', '.join(artifact.manifest.precision for artifact in artifacts)}")
    rates = in_turn(typical_inputs(base), embedders)
    ranked = [ranking(embed(sentences(rows)), rows) if rows else None for embed in embedders]
    measured = [
        Candidate(artifact, rate, spearman, (ranked[0] or 0.0) - (spearman or 0.0))
        for artifact, rate, spearman in zip(artifacts, rates, ranked, strict=True)
    ]
    for line in table(measured):
        progress(line)
    return measured


def candidates(provider: str, progress: Progress) -> Iterator[Precision]:
    """Yield the precisions that may be faster than float32 here, and report skipped ones.

    Args:
        provider: provider that computes float32.
        progress: function called with a line for each skipped precision.

    """
    if provider == CUDA:
        yield "fp16"
        return
    if not is_installed("openvino"):
        progress("bf16 and int8 are left out: OpenVINO is not installed")
        return
    for precision in CPU_PRECISIONS:
        note = precision_note(precision)
        if note:
            progress(f"{precision} is left out: {note}")
        else:
            yield precision


def choose(measured: Sequence[Candidate], progress: Progress) -> Candidate:
    """Choose the fastest candidate that passed; less exact ones must be `MIN_SPEEDUP` times faster.

    If none passed, the first candidate is chosen.

    Args:
        measured: candidates by descending exactness; rates are relative to the first.
        progress: function called with a line about the choice.

    """
    passed = [candidate for candidate in measured if candidate.passed]
    if not passed:
        progress(f"the vectors of no precision passed: {measured[0].precision} is kept")
        return measured[0]
    best = passed[0]
    for candidate in passed[1:]:
        if candidate.rate.ratio > MIN_SPEEDUP * best.rate.ratio:
            best = candidate
    if best is measured[0]:
        progress(f"chosen: {best.precision}; none that passed is {MIN_SPEEDUP:g} times as fast")
    else:
        progress(
            f"chosen: {best.precision}, {best.rate.ratio:.2f} times {measured[0].precision}, "
            "verified"
        )
    return best


def table(measured: Sequence[Candidate]) -> list[str]:
    """Return the lines of a table of candidates, followed by their verdicts."""
    header = ["precision", "texts/s", "× fp32", *_QUALITY.values(), *USES]
    lines = [
        [
            candidate.precision,
            f"{candidate.rate.per_second:.0f}",
            f"{candidate.rate.ratio:.2f}",
            *_quality(candidate.artifact.manifest.verification),
            *words(candidate.artifact.manifest),
        ]
        for candidate in measured
    ]
    if any(candidate.spearman is not None for candidate in measured):
        header.append("Spearman")
        for line, candidate in zip(lines, measured, strict=True):
            line.append("" if candidate.spearman is None else f"{100 * candidate.spearman:.2f}")
    lost = [
        f"FAILED, {candidate.precision}: Spearman {100 * candidate.loss:.2f} below fp32's (at most "
        f"{100 * LARGEST_LOSS:g})"
        for candidate in measured
        if candidate.loss > LARGEST_LOSS
    ]
    return [
        *aligned([header, *lines]),
        *verdicts([candidate.artifact.manifest for candidate in measured]),
        *lost,
    ]


def _quality(record: VerificationRecord) -> list[str]:
    """Return the similarity figures of a table row; empty if tensors have tolerances instead."""
    if record.similarity is None:
        return [""] * len(_QUALITY)
    return [f"{getattr(record.similarity, name):.4f}" for name in _QUALITY]


def typical_inputs(artifact: Artifact) -> Sequence[str | Floats]:
    """Return the texts that calibrate int8, or the pixels `[S, F]` of the pictures that do."""
    from model.export.calibration import TEXTS  # noqa: PLC0415 - imports torch
    from model.export.picture_samples import PictureScenes  # noqa: PLC0415

    manifest = artifact.manifest
    if manifest.images is not None:
        return [*PictureScenes(patches_of(manifest.config), manifest.images).calibration()]
    return TEXTS.read_text(encoding="utf-8").splitlines()


def _engine(artifact: Artifact, settings: Settings) -> OnnxEngine:
    return OnnxEngine(
        artifact,
        settings.device,
        settings.threads,
        settings.device_id,
        settings.device_memory_bytes,
    )
