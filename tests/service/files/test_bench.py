"""`headscope bench`: its ranking is scipy's, its vectors are sentence-transformers'."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from model.artifact.manifest import Artifact
from model.artifact.verification import Verdict
from model.config.precision import Precision
from model.errors import ArtifactError, ModelError
from model.numerics.similarity import bounds_line
from service.artifacts.opening import find_checkpoint, open_artifact
from service.cli import main
from service.files.bench import (
    ROUND_SECONDS,
    ROUNDS,
    Measured,
    fastest,
    in_turn,
    measure,
    open_precisions,
    read_pairs,
    table,
    workload,
)
from service.settings import Settings

PAIRS = """\
A plane is taking off.,An air plane is taking off.,5.0
"A man, smiling, plays a guitar.",A person plays an instrument.,3.5
Two dogs run over the snow.,Dogs are running in the snow.,4.4
The price of oil fell on Monday.,A girl is brushing her hair.,0.0
A cat sleeps on the sofa.,A dog sleeps on the sofa.,2.0
"""
Make = Callable[..., Artifact]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    path.write_text(PAIRS, encoding="utf-8")
    return path


@pytest.fixture
def make(artifact: Artifact) -> Make:
    """Return `make(precision, passed)`, which relabels an artifact."""

    def of(precision: Precision, passed: bool = True) -> Artifact:
        verdict = Verdict(passed=passed, failed=None if passed else "least cosine 0.8")
        found = {"vectors": verdict, "heads": Verdict(passed=True)}
        verification = artifact.manifest.verification.model_copy(update=found)
        changed = {"precision": precision, "verification": verification}
        return replace(artifact, manifest=artifact.manifest.model_copy(update=changed))

    return of


# ── the table and the choice ───────────────────────────────────────────────────────────────


def test_a_table_has_rates_verdicts_bounds_and_failures(make: Make) -> None:
    found = [
        Measured(make("fp32"), 53.4, 1.0, 0.86716),
        Measured(make("int8", False), 114.2, 2.1604, 0.86641),
    ]
    header, *rows, exact, bounds, failed = table(found)
    columns = ["artifact", "precision", "texts/s", "×", "first", "vectors", "heads", "Spearman"]
    assert header.split() == columns
    name = found[0].artifact.folder.name
    assert [row.split() for row in rows] == [
        [name, "fp32", "53", "1.00", "passed", "passed", "86.72"],
        [name, "int8", "114", "2.16", "FAILED", "passed", "86.64"],
    ]
    assert [exact, bounds] == [bounds_line("fp32"), bounds_line("int8")]
    assert failed == "FAILED, int8: vectors: least cosine 0.8"


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([("fp32", 1.0, True)], "fp32"),
        ([("fp32", 1.0, True), ("bf16", 1.5, True), ("int8", 2.2, True)], "int8"),
        ([("fp32", 1.0, True), ("bf16", 1.5, True), ("int8", 2.2, False)], "bf16"),
        ([("fp32", 1.0, True), ("bf16", 0.85, True), ("int8", 0.69, True)], "fp32"),
        ([("fp32", 1.0, True), ("bf16", 1.04, True), ("int8", 1.06, True)], "int8"),
        ([("fp32", 1.0, True), ("bf16", 1.9, True), ("int8", 1.95, True)], "bf16"),
        ([("fp32", 1.0, False), ("bf16", 0.9, True)], "bf16"),
        ([("fp32", 1.0, True), ("fp16", 3.0, True)], "fp16"),
    ],
)
def test_the_fastest_that_passed_is_named(
    make: Make, found: list[tuple[Precision, float, bool]], chosen: str
) -> None:
    measured = [Measured(make(name, passed), 50 * r, r) for name, r, passed in found]
    (ratio,) = (r for name, r, _ in found if name == chosen)
    assert fastest(measured) == f"fastest: --precision {chosen}, {ratio:.2f} times fp32's rate"


def test_what_failed_or_ranks_pairs_worse_is_not_named(make: Make) -> None:
    fp32 = Measured(make("fp32"), 50, 1.0, 0.87)
    assert "fp32," in fastest([fp32, Measured(make("int8"), 100, 2.0, 0.86)])
    assert "int8," in fastest([fp32, Measured(make("int8"), 100, 2.0, 0.869)])
    failed = Measured(make("fp32", False), 50, 1.0)
    assert fastest([failed]) == "no precision passed the verification of vectors"


# ── which precisions are opened ────────────────────────────────────────────────────────────


@pytest.fixture
def opened(make: Make, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace exports by relabelled artifacts, and return the list of their precisions."""
    found: list[str] = []

    def open_stub(settings: Settings, _: object) -> Artifact:
        assert settings.allow_unverified
        found.append(settings.precision)
        return make(settings.precision)

    monkeypatch.setattr("service.files.bench.open_artifact", open_stub)
    monkeypatch.setattr("model.runtimes.openvino.computes_bfloat16", lambda: True)
    monkeypatch.setattr("model.runtimes.openvino.saturates", lambda: False)
    return found


def test_a_processor_lacks_some_products(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    assert len(open_precisions(Settings(device="cpu"), reported.append)) == 3
    assert opened == ["fp32", "bf16", "int8"]
    assert reported == []
    monkeypatch.setattr("model.runtimes.openvino.computes_bfloat16", lambda: False)
    open_precisions(Settings(device="cpu"), reported.append)
    assert opened[3:] == ["fp32", "int8"]
    assert [line.partition(" is left out: no fast bf16")[0] for line in reported] == ["bf16"]


def test_half_precision_is_for_a_gpu_alone(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(provider="CUDAExecutionProvider")
    monkeypatch.setattr("service.files.bench.OnnxEngine", lambda *_: cuda)
    open_precisions(Settings(), print)
    assert opened == ["fp32", "fp16"]


@pytest.mark.parametrize("error", [ModelError, ValueError, ArtifactError])
def test_a_precision_that_cannot_be_opened(
    opened: list[str], make: Make, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out with the reason; a full disk ends the command."""

    def open_stub(settings: Settings, _: object) -> Artifact:
        if settings.precision == "bf16":
            raise error("no")
        return make(settings.precision)

    monkeypatch.setattr("service.files.bench.open_artifact", open_stub)
    reported: list[str] = []
    if error is ArtifactError:
        with pytest.raises(error):
            open_precisions(Settings(device="cpu"), reported.append)
    else:
        assert len(open_precisions(Settings(device="cpu"), reported.append)) == 2
        assert reported == ["bf16 is left out: no"]
    assert opened == []


# ── measuring ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_default_model_ranks_as_sentence_transformers_does(pairs: Path) -> None:
    settings = Settings(device="cpu")
    reference = SentenceTransformer(str(find_checkpoint(settings, print)), device="cpu")
    rows = read_pairs(pairs)
    expected = reference.encode([text for row in rows for text in row[:2]])
    cosines = reference.similarity_pairwise(expected[0::2], expected[1::2])
    (found,) = measure([open_artifact(settings)], settings, rows)
    assert found.spearman == pytest.approx(spearmanr(cosines, [row[2] for row in rows]).statistic)
    assert found.per_second > 0
    assert found.ratio == 1


def test_artifacts_are_compared_side_by_side(
    artifact: Artifact,
    pairs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without pairs, on typical texts."""
    other = Path(shutil.copytree(artifact.folder, tmp_path / "the other"))
    counts: list[int] = []

    def stub(
        texts: Sequence[str], ways: Sequence[Callable[[Sequence[str]], object]]
    ) -> list[tuple[float, float]]:
        counts.append(len(texts))
        return [(100.0, 1.0), (254.0, 2.5391)][: len(ways)]

    monkeypatch.setattr("service.files.bench.in_turn", stub)
    both = ["bench", "--artifact", str(artifact.folder), "--artifact", str(other)]
    assert main([*both, "--pairs", str(pairs), "--device", "cpu"]) == 0
    _, first, second, bounds = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == [artifact.folder.name, "fp32", "100", "1.00"]
    assert second.split()[-5:-3] == ["254", "2.54"]
    assert first.split()[-1] == second.split()[-1]
    assert bounds == bounds_line("fp32")
    assert main([*both, "--device", "cpu"]) == 0
    assert counts == [10, 200]


def test_a_model_gets_a_choice(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = [(50.0, 1.0), (75.0, 1.5), (100.0, 2.0)]
    monkeypatch.setattr("service.files.bench.in_turn", lambda *_: rates)
    assert main(["bench", "--device", "cpu"]) == 0
    assert opened == ["fp32", "bf16", "int8"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "fastest: --precision int8, 2.00 times fp32's rate"


def test_pictures_have_no_texts_to_be_timed_on(picture_artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="pictures encodes pictures: bench is for texts"):
        measure([picture_artifact], Settings(), [])


@pytest.mark.parametrize("content", ["a,b,1\n", "a,b,1\na,b\n", "a,b,1\na,b,much\n", ""])
def test_what_is_no_pair_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2 is not sentence|at least two pairs"):
        read_pairs(path)


# ── rates, on a clock that the timed functions move ────────────────────────────────────────


class Clock:
    """Clock, and functions that advance it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def way(self, name: str, seconds: Callable[[int], float]) -> Callable[[Sequence[str]], None]:
        """Return a function that takes `seconds(n)` seconds an item at its nth call."""
        calls = 0

        def run(items: Sequence[str]) -> None:
            nonlocal calls
            self.now += len(items) * seconds(calls)
            self.order.append(name)
            calls += 1

        return run


def test_a_workload_takes_long_enough_and_is_spread_over_all() -> None:
    clock = Clock()
    items = list(map(str, range(1000)))
    chosen = workload(items, clock.way("a", lambda _: 0.01), clock)
    assert len(chosen) == 64  # 32 would take 0.32 seconds
    assert chosen[0] == "0"
    places = [int(text) for text in chosen]
    assert {later - earlier for earlier, later in itertools.pairwise(places)} <= {15, 16}
    assert len(workload(items, clock.way("slow", lambda _: 10), clock)) == 8
    for few in (items[:1], items[:8], items[:20]):
        assert workload(few, clock.way("fast", lambda _: 0.001), clock) == few


def test_first_calls_which_compile_are_not_counted() -> None:
    clock = Clock()
    compiles = clock.way("a", lambda call: 0.001 if call % 2 else 100)
    assert len(workload(list(map(str, range(100))), compiles, clock)) == 100
    clock.order.clear()
    ways = [clock.way(name, lambda _: 1.0) for name in "ab"]
    in_turn(["0"], ways, clock)
    assert "".join(clock.order[:4]) == "abab"
    assert len(clock.order) == 2 * (1 + ROUNDS)


def test_rounds_are_interleaved_and_nobody_is_always_first() -> None:
    clock = Clock()
    ways = [clock.way(name, lambda _: ROUND_SECONDS) for name in "abc"]
    in_turn(["0"], ways, clock)
    turns = "".join(clock.order[-3 * ROUNDS :])
    assert turns.startswith("abcbcacab")
    assert all(turns.count(name) == ROUNDS for name in "abc")


def test_a_machine_that_is_slow_for_a_while_changes_no_ratio() -> None:
    """Half of the rounds take ten times as long for both ways, and one round for only one."""
    clock = Clock()

    def slow(call: int) -> float:
        return 10.0 if call > 3 else 1.0

    ways = [
        clock.way("a", lambda call: 0.2 * slow(call)),
        clock.way("b", lambda call: 0.1 * slow(call) * (7 if call == 5 else 1)),
    ]
    first, second = in_turn(["0"], ways, clock)
    assert (first[1], second[1]) == (1, pytest.approx(2))
    assert first[0] == pytest.approx(1 / 2)
    assert second[0] == pytest.approx(1)
