"""Verdict of a verification on each use, by the tensors compared for it."""

from __future__ import annotations

import pytest

from model.config.precision import Precision
from model.export.verify import Verification, report
from model.numerics.comparison import Comparison, Difference, Key, Kind, tolerances_of
from model.numerics.similarity import Similarity

GOOD, BAD = Difference(1e-7, 1.0, passed=True), Difference(9.0, 0.2, passed=False)
ALIKE = Similarity(
    texts=154,
    rank_correlation=0.9929,
    neighbour_recall=0.9357,
    mean_cosine=0.9959,
    low_cosine=0.9932,
    least_cosine=0.9847,
)
OTHERS = ALIKE.model_copy(update={"rank_correlation": 0.91, "least_cosine": 0.5})


def verification(
    precision: Precision, wrong: Kind | None = None, found: Similarity | None = ALIKE
) -> Verification:
    kinds: tuple[Kind, ...] = ("hidden", "attention", "values", "pooled", "task")
    differences = {Key(kind): BAD if kind == wrong else GOOD for kind in kinds}
    comparison = Comparison(differences=differences, inputs=9)
    return Verification(precision, "CPU", tolerances_of(precision, 6), comparison, found)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("wrong", ["hidden", "attention", "values", "pooled", "task"])
def test_an_exact_precision_fails_both_uses_for_any_tensor(
    precision: Precision, wrong: Kind
) -> None:
    assert verification(precision, None, None).passed
    record = verification(precision, wrong, None).record()
    assert not record.passed
    assert record.vectors == record.heads
    assert (record.failed or "").startswith("1 of 5 tensors, first ")


@pytest.mark.parametrize("wrong", ["hidden", "attention", "values"])
def test_heads_may_fail_alone(wrong: Kind) -> None:
    record = verification("int8", wrong).record()
    assert record.passed
    assert record.vectors.passed
    assert not record.heads.passed
    assert (record.heads.failed or "").startswith("1 of 3 tensors, first ")
    assert record.similarity == ALIKE
    assert record.similarity_at_least["rank_correlation"] < 0.9929


@pytest.mark.parametrize("wrong", ["pooled", "task"])
def test_a_vector_that_is_broken_fails_vectors_alone(wrong: Kind) -> None:
    record = verification("int8", wrong).record()
    assert record.heads.passed
    assert (record.vectors.failed or "").startswith("1 of 2 tensors, first ")


def test_vectors_that_rank_otherwise_fail_alone() -> None:
    found = verification("int8", found=OTHERS)
    record = found.record()
    assert record.heads.passed
    assert not record.vectors.passed
    said = record.vectors.failed or ""
    assert "rank correlation of similarities 0.9100 (at least " in said
    assert "least cosine 0.5000 (at least " in said
    assert "recall" not in said
    lines = report(found).splitlines()
    assert lines[-1].startswith("passed: ")
    assert lines[-2] == f"vectors: {said}"
    assert lines[-4:-2] == ["vectors: FAILED", "heads: passed"]
    assert lines[-5].startswith("int8 vectors, at least: ")


def test_what_fails_both_is_refused() -> None:
    record = verification("int8", "hidden", OTHERS).record()
    assert not record.passed
    assert "vectors: " in str(record.failed)
    assert "; heads: " in str(record.failed)


def test_a_mismatch_fails_both() -> None:
    found = verification("int8")
    found.comparison.mismatches.append("hidden 1 is missing")
    assert found.record().failed == "hidden 1 is missing"
    assert not found.passed
