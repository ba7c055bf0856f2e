"""The precisions that may be the fastest on this machine, and which of them is: by measuring.

Each is exported and verified as if it had been asked for, then all are timed in turn on typical
texts: docs/decisions/0017-precision-chosen-by-measurement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.artifact.bounds import LARGEST_LOSS
from model.artifact.manifest import Artifact, Precision
from model.artifact.verification import USES, VerificationRecord
from model.errors import ArtifactError, ModelError
from service.artifacts.evaluation import (
    Embedder,
    aligned,
    ranking,
    read_pairs,
    sentences,
    verdicts,
    words,
)
from service.artifacts.opening import Progress
from service.artifacts.precision import precision_note
from service.artifacts.timing import Rate, in_turn
from service.engines.onnx import CUDA, OnnxEngine
from service.settings import Settings
from service.system.distribution import is_installed

Export = Callable[[Precision, Artifact | None], Artifact]
"""An export of a precision; its second argument is the one in float32, once there is one."""
OF_A_PROCESSOR: tuple[Precision, ...] = ("bf16", "int8")
"""Precisions that its own products make fast, the exacter one first."""
WORTH_IT = 1.05
"""How much faster a less exact precision has to be: less is within what times vary by."""


_QUALITY = {
    "rank_correlation": "ρ of similarities",
    "neighbour_recall": "recall@10",
    "mean_cosine": "mean cosine",
    "low_cosine": "5 %",
    "least_cosine": "least",
}
"""Names of a table's columns, by figure of `Similarity`."""


@dataclass(frozen=True)
class Candidate:
    """An export of one precision, and what was measured of it."""

    artifact: Artifact
    rate: Rate
    spearman: float | None = None
    """Rank correlation with the scores of pairs, where pairs are given."""
    loss: float = 0.0
    """Rank correlation of fp32 less this one."""

    @property
    def precision(self) -> Precision:
        """The artifact's."""
        return self.artifact.manifest.precision

    @property
    def passed(self) -> bool:
        """Whether its vectors passed their verification, and rank the pairs nearly as fp32's."""
        return self.artifact.manifest.verification.vectors.passed and self.loss <= LARGEST_LOSS


def measure(
    settings: Settings, export: Export, progress: Progress, pairs: Path | None = None
) -> list[Candidate]:
    """Export every candidate and time all of them in turn; float32 is the first.

    Args:
        settings: the device and the threads.
        export: makes an artifact of a precision, or finds it.
        progress: called with a line for each candidate that is left out, and those of a table.
        pairs: scored pairs that each candidate ranks.

    Raises:
        ModelError: float32 cannot be exported, or a file cannot be written.
        ValueError: the pairs are none.

    """
    rows = read_pairs(pairs) if pairs else []
    base = export("fp32", None)
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
    rates = in_turn(typical_texts(), embedders)
    ranked = [ranking(embed(sentences(rows)), rows) if rows else None for embed in embedders]
    found = [
        Candidate(artifact, rate, spearman, (ranked[0] or 0.0) - (spearman or 0.0))
        for artifact, rate, spearman in zip(artifacts, rates, ranked, strict=True)
    ]
    for line in table(found):
        progress(line)
    return found


def candidates(provider: str, progress: Progress) -> Iterator[Precision]:
    """The precisions beside float32 that may be faster here, and why others are left out.

    Args:
        provider: what computes float32.
        progress: called with a line for each of a processor's that is left out.

    """
    if provider == CUDA:
        yield "fp16"
        return
    if not is_installed("openvino"):
        progress("bf16 and int8 are left out: OpenVINO is not installed")
        return
    for precision in OF_A_PROCESSOR:
        note = precision_note(precision)
        if note:
            progress(f"{precision} is left out: {note}")
        else:
            yield precision


def choose(found: Sequence[Candidate], progress: Progress) -> Candidate:
    """The fastest whose verification passed; an exacter one unless it is slower by `WORTH_IT`.

    Where none passed, it is the first.

    Args:
        found: the exactest first; its rate is what the others' are compared to.
        progress: called with a line that says what was chosen.

    """
    passed = [candidate for candidate in found if candidate.passed]
    if not passed:
        progress(f"the vectors of no precision passed: {found[0].precision} is kept")
        return found[0]
    best = passed[0]
    for candidate in passed[1:]:
        if candidate.rate.ratio > WORTH_IT * best.rate.ratio:
            best = candidate
    if best is found[0]:
        progress(f"chosen: {best.precision}; none that passed is {WORTH_IT:g} times as fast")
    else:
        progress(
            f"chosen: {best.precision}, {best.rate.ratio:.2f} times {found[0].precision}, verified"
        )
    return best


def table(found: Sequence[Candidate]) -> list[str]:
    """Return the lines of a table of the candidates, and their verdicts."""
    header = ["precision", "texts/s", "× fp32", *_QUALITY.values(), *USES]
    lines = [
        [
            candidate.precision,
            f"{candidate.rate.per_second:.0f}",
            f"{candidate.rate.ratio:.2f}",
            *_quality(candidate.artifact.manifest.verification),
            *words(candidate.artifact.manifest),
        ]
        for candidate in found
    ]
    if any(candidate.spearman is not None for candidate in found):
        header.append("Spearman")
        for line, candidate in zip(lines, found, strict=True):
            line.append("" if candidate.spearman is None else f"{100 * candidate.spearman:.2f}")
    lost = [
        f"FAILED, {each.precision}: Spearman {100 * each.loss:.2f} below fp32's (at most "
        f"{100 * LARGEST_LOSS:g})"
        for each in found
        if each.loss > LARGEST_LOSS
    ]
    return [
        *aligned([header, *lines]),
        *verdicts([each.artifact.manifest for each in found]),
        *lost,
    ]


def _quality(record: VerificationRecord) -> list[str]:
    """Return the figures of a table's row; empty where every tensor has its tolerance instead."""
    if record.similarity is None:
        return [""] * len(_QUALITY)
    return [f"{getattr(record.similarity, name):.4f}" for name in _QUALITY]


def typical_texts() -> list[str]:
    """Return the texts that int8 is calibrated with."""
    from model.export.calibration import TEXTS  # noqa: PLC0415 - an export's, which imports torch

    return TEXTS.read_text(encoding="utf-8").splitlines()


def _engine(artifact: Artifact, settings: Settings) -> OnnxEngine:
    return OnnxEngine(
        artifact,
        settings.device,
        settings.threads,
        settings.device_id,
        settings.device_memory_bytes,
    )
