"""Precisions that are tried, and the choice between them, without clock and export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import spearmanr

from model.artifact.manifest import Artifact
from model.artifact.verification import Verdict
from model.config.precision import Precision
from model.errors import ArtifactError, ModelError
from model.export.calibration import TEXTS
from model.numerics.bounds import SIMILARITY_AT_LEAST
from model.numerics.similarity import Similarity
from service.measuring.selection import (
    MIN_SPEEDUP,
    Candidate,
    candidates,
    choose,
    measure,
    table,
    typical_inputs,
)
from service.measuring.timing import Rate
from service.settings import Settings

HEADS = Verdict(passed=True)
SIMILARITY = Similarity(
    texts=154,
    rank_correlation=0.9929,
    neighbour_recall=0.9357,
    mean_cosine=0.9959,
    low_cosine=0.9932,
    least_cosine=0.9847,
)
RHO = SIMILARITY_AT_LEAST["int8"]["rank_correlation"]
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
Make = Callable[..., Artifact]


@pytest.fixture
def make(artifact: Artifact) -> Make:
    """Return `make(precision, passed)`, which makes an artifact with that verification."""

    def of(precision: Precision, passed: bool = True) -> Artifact:
        verdict = Verdict(passed=passed, failed=None if passed else "least cosine 0.8")
        found = {"vectors": verdict, "heads": HEADS}
        if precision != "fp32":
            found["similarity"] = SIMILARITY
        verification = artifact.manifest.verification.model_copy(update=found)
        changed = {"precision": precision, "verification": verification}
        return replace(artifact, manifest=artifact.manifest.model_copy(update=changed))

    return of


# ── which is chosen ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([("fp32", 1.0, True)], "fp32"),
        ([("fp32", 1.0, True), ("bf16", 1.5, True), ("int8", 2.2, True)], "int8"),
        ([("fp32", 1.0, True), ("bf16", 1.5, True), ("int8", 2.2, False)], "bf16"),
        ([("fp32", 1.0, True), ("bf16", 0.85, True), ("int8", 0.69, True)], "fp32"),
        ([("fp32", 1.0, True), ("bf16", 1.04, True), ("int8", 1.06, True)], "int8"),
        ([("fp32", 1.0, True), ("bf16", 1.9, True), ("int8", 1.95, True)], "bf16"),
        ([("fp32", 1.0, True), ("bf16", 1.04, True)], "fp32"),
        ([("fp32", 1.0, False), ("bf16", 0.9, True)], "bf16"),
        ([("fp32", 1.0, False), ("bf16", 1.9, False)], "fp32"),
        ([("fp32", 1.0, True), ("fp16", 3.0, True)], "fp16"),
    ],
)
def test_the_fastest_that_passed_is_chosen(
    make: Make, found: list[tuple[Precision, float, bool]], chosen: str
) -> None:
    reported: list[str] = []
    timed = [Candidate(make(name, passed), Rate(50 * r, r)) for name, r, passed in found]
    assert choose(timed, reported.append).precision == chosen
    (line,) = reported  # never silently
    assert chosen in line


def test_what_is_said_of_a_choice(make: Make) -> None:
    reported: list[str] = []
    fp32 = Candidate(make("fp32"), Rate(50, 1.0))
    choose([fp32, Candidate(make("int8"), Rate(108, 2.157))], reported.append)
    choose([fp32, Candidate(make("int8"), Rate(50, 1.0))], reported.append)
    choose([Candidate(make("fp32", False), Rate(50, 1.0))], reported.append)
    assert reported == [
        "chosen: int8, 2.16 times fp32, verified",
        f"chosen: fp32; none that passed is {MIN_SPEEDUP:g} times as fast",
        "the vectors of no precision passed: fp32 is kept",
    ]


def test_a_table(make: Make) -> None:
    found = [
        Candidate(make("fp32"), Rate(53.4, 1.0), 0.86716),
        Candidate(make("int8", False), Rate(114.2, 2.1604), 0.86641),
        Candidate(make("bf16"), Rate(80.2, 1.5), 0.85, 0.01716),
    ]
    figures = ["0.9929", "0.9357", "0.9959", "0.9932", "0.9847"]
    assert [line.split() for line in table(found)[1:4]] == [
        ["fp32", "53", "1.00", "passed", "passed", "86.72"],
        ["int8", "114", "2.16", *figures, "FAILED", "passed", "86.64"],
        ["bf16", "80", "1.50", *figures, "passed", "passed", "85.00"],
    ]
    *bounds, failed, lost = table(found)[4:]
    assert [line.partition(" vectors")[0] for line in bounds] == ["fp32", "int8", "bf16"]
    assert f"rank correlation of similarities {RHO:g}" in bounds[1]
    assert failed == "FAILED, int8: vectors: least cosine 0.8"
    assert lost == "FAILED, bf16: Spearman 1.72 below fp32's (at most 0.5)"
    assert "Spearman" in table(found)[0]
    assert "Spearman" not in table([replace(each, spearman=None) for each in found])[0]


def test_what_ranks_pairs_worse_is_not_chosen(make: Make) -> None:
    reported: list[str] = []
    fp32 = Candidate(make("fp32"), Rate(50, 1.0), 0.87)
    worse = Candidate(make("int8"), Rate(100, 2.0), 0.86, 0.01)
    assert choose([fp32, worse], reported.append) is fp32
    assert choose(
        [fp32, replace(worse, spearman=0.869, loss=0.001)], reported.append
    ).precision == ("int8")


# ── which are tried ────────────────────────────────────────────────────────────────────────


def processor(monkeypatch: pytest.MonkeyPatch, *, bf16: bool, int8: bool) -> None:
    monkeypatch.setattr("model.runtimes.processor.computes_bfloat16", lambda: bf16)
    monkeypatch.setattr("model.runtimes.processor.saturates", lambda: not int8)


def test_a_processor_with_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, bf16=True, int8=True)
    reported: list[str] = []
    assert list(candidates(CPU, reported.append)) == ["bf16", "int8"]
    assert reported == []


def test_a_processor_without_some_products(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, bf16=False, int8=True)
    reported: list[str] = []
    assert list(candidates(CPU, reported.append)) == ["int8"]
    assert [line.partition(" is left out: no fast bf16")[0] for line in reported] == ["bf16"]
    processor(monkeypatch, bf16=False, int8=False)
    assert list(candidates(CPU, reported.append)) == []


def test_no_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "service.measuring.selection.is_installed", lambda module: module != "openvino"
    )
    reported: list[str] = []
    assert list(candidates(CPU, reported.append)) == []
    assert reported == ["bf16 and int8 are left out: OpenVINO is not installed"]


def test_half_precision_is_for_a_gpu_alone() -> None:
    assert list(candidates(CUDA, print)) == ["fp16"]


# ── measuring ──────────────────────────────────────────────────────────────────────────────


def test_pictures_are_timed_on_pictures(picture_artifact: Artifact) -> None:
    pictures = typical_inputs(picture_artifact)
    assert len(pictures) == 32
    assert {np.shape(pixels) for pixels in pictures} == {(9, 588)}


class StubEmbedder:
    """Embedder of two features that depend on the text's length and the precision."""

    def __init__(self, artifact: Artifact, _: object) -> None:
        self.precision = artifact.manifest.precision

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        angles = np.array([len(text) ** (2 if self.precision == "int8" else 1) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace engines by stubs without graphs, with known rates."""
    rates = {"fp32": Rate(50, 1.0), "bf16": Rate(75, 1.5), "int8": Rate(100, 2.0)}

    def in_turn(texts: Sequence[str], ways: Sequence[StubEmbedder]) -> list[Rate]:
        assert list(texts) == TEXTS.read_text(encoding="utf-8").splitlines()
        return [rates[way.precision] for way in ways]

    monkeypatch.setattr(
        "service.measuring.selection.OnnxEngine", lambda *_: SimpleNamespace(provider=CPU)
    )
    monkeypatch.setattr("service.measuring.selection.Embedder", StubEmbedder)
    monkeypatch.setattr("service.measuring.selection.in_turn", in_turn)
    processor(monkeypatch, bf16=True, int8=True)


@pytest.mark.usefixtures("stubs")
def test_every_candidate_is_made_of_the_first_and_measured(make: Make, tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    def export(precision: Precision, base: Artifact | None) -> Artifact:
        asked.append((precision, base and base.manifest.precision))
        return make(precision)

    pairs = tmp_path / "pairs.csv"
    rows = [("a", "bb", 5.0), ("aaaa", "a", 1.5), ("aa", "aaaaaaa", 3.0), ("b", "c", 0.5)]
    pairs.write_text("".join(f"{a},{b},{score}\n" for a, b, score in rows))
    reported: list[str] = []
    found = measure(Settings(), export, reported.append, pairs)
    assert asked == [("fp32", None), ("bf16", "fp32"), ("int8", "fp32")]
    assert [(each.precision, each.rate.ratio) for each in found] == [
        ("fp32", 1.0),
        ("bf16", 1.5),
        ("int8", 2.0),
    ]
    for each in found:
        embed = StubEmbedder(each.artifact, None)
        cosines = [float(embed([a])[0] @ embed([b])[0]) for a, b, _ in rows]
        expected = spearmanr(cosines, [score for *_, score in rows]).statistic
        assert each.spearman == pytest.approx(expected)
    assert reported == ["timing fp32, bf16, int8", *table(found)]


@pytest.mark.usefixtures("stubs")
def test_a_candidate_that_cannot_be_made_is_named_and_left_out(make: Make) -> None:
    def export(precision: Precision, _: Artifact | None) -> Artifact:
        if precision == "bf16":
            raise ModelError("OpenVINO cannot load encoder.onnx")
        return make(precision)

    reported: list[str] = []
    assert [each.precision for each in measure(Settings(), export, reported.append)] == [
        "fp32",
        "int8",
    ]
    assert reported[0] == "bf16 is left out: OpenVINO cannot load encoder.onnx"


@pytest.mark.usefixtures("stubs")
@pytest.mark.parametrize(
    ("precision", "error"), [("fp32", ModelError("no")), ("int8", ArtifactError("no room"))]
)
def test_what_fails_for_good_ends_it(make: Make, precision: str, error: ModelError) -> None:
    """A full disk does not select another precision; without float32 nothing can be measured."""

    def export(wanted: Precision, _: Artifact | None) -> Artifact:
        if wanted == precision:
            raise error
        return make(wanted)

    with pytest.raises(type(error), match="no"):
        measure(Settings(), export, print)


def test_pairs_are_read_before_anything_is_exported(tmp_path: Path) -> None:
    def export(precision: Precision, _: Artifact | None) -> Artifact:
        raise AssertionError(precision)

    (tmp_path / "pairs.csv").write_text("no pair\n")
    with pytest.raises(ValueError, match="line 1 is not sentence,sentence,score"):
        measure(Settings(), export, print, tmp_path / "pairs.csv")
