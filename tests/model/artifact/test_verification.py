"""Records of verifications: two uses, each with its verdict."""

from __future__ import annotations

import math

import pytest

from model.artifact.verification import (
    UNVERIFIED,
    Verdict,
    VerificationRecord,
    next_power_of_ten,
    verdict_lines,
)
from model.config.precision import Use

PASSED, FAILED = Verdict(passed=True), Verdict(passed=False, failed="hidden state 6")
LESS = Verdict(passed=False, failed="least cosine 0.8")


def record(vectors: Verdict, heads: Verdict) -> VerificationRecord:
    return UNVERIFIED.model_copy(update={"vectors": vectors, "heads": heads})


@pytest.mark.parametrize(
    ("vectors", "heads", "passed", "failed", "lines"),
    [
        (PASSED, PASSED, True, None, ["verified"]),
        (FAILED, FAILED, False, "hidden state 6", ["verification FAILED: hidden state 6"]),
        (
            PASSED,
            FAILED,
            True,
            "heads: hidden state 6",
            ["vectors: verified", "heads: verification FAILED: hidden state 6"],
        ),
        (
            LESS,
            FAILED,
            False,
            "vectors: least cosine 0.8; heads: hidden state 6",
            [
                "vectors: verification FAILED: least cosine 0.8",
                "heads: verification FAILED: hidden state 6",
            ],
        ),
    ],
)
def test_a_record_that_failed_one_use_passed_the_other(
    vectors: Verdict, heads: Verdict, passed: bool, failed: str | None, lines: list[str]
) -> None:
    found = record(vectors, heads)
    assert (found.passed, found.failed) == (passed, failed)
    assert verdict_lines(found) == lines


@pytest.mark.parametrize(("use", "verdict"), [("vectors", LESS), ("heads", FAILED)])
def test_a_use_has_its_own_verdict(use: Use, verdict: Verdict) -> None:
    assert record(LESS, FAILED).verdict(use) == verdict


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, 0.0),
        (math.inf, None),
        (3e-7, 1e-6),
        (1.0001e-6, 1e-5),
        (9.99e-6, 1e-5),
        (0.5, 1.0),
        (1.5, 10.0),
        (99.0, 100.0),
        *((float(f"1e{power}"), float(f"1e{power}")) for power in range(-30, 31)),
    ],
)
def test_next_power_of_ten(value: float, expected: float) -> None:
    assert next_power_of_ten(value) == expected
