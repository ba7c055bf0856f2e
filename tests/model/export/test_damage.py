"""Checks of texts: tensors against the same text's alone, pooled vectors against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from model.config.precision import Precision
from model.export.failure import first_failure
from model.export.verify import add_checks
from model.numerics.comparison import Comparison, Floats, Key, keyed, tolerances_of
from model.numerics.pooling import l2_normalize


def tensors(degrees: float) -> dict[Key, Floats]:
    """Return the tensors of a text of one token, where only its last state is rotated."""
    angle = np.radians(degrees)
    hidden = [
        np.array([[1, 0]], np.float32),
        np.array([[np.cos(angle), np.sin(angle)]], np.float32),
    ]
    maps = np.ones((1, 1, 1, 1), np.float32)
    return keyed(hidden, maps, lambda state: l2_normalize(state.mean(axis=0)))


def compared(precision: Precision, found: float, alone: float) -> Comparison:
    """Compare a text whose last state is rotated by 0° in PyTorch, by angles in the graphs."""
    reference, candidate, comparison = tensors(0), tensors(found), Comparison()
    add_checks([reference], [candidate], [tensors(alone)])
    comparison.add(reference, candidate, tolerances_of(precision, 1))
    return comparison


def failed(comparison: Comparison) -> set[str]:
    return {str(key) for key, found in comparison.differences.items() if not found.passed}


@pytest.mark.parametrize(
    ("found", "alone", "expected"),
    [
        (0, 0, set()),
        (25, 25, set()),  # cos 25° = 0.906
        (26, 26, {"pooled (text)"}),  # cos 26° = 0.899
        (14, 0, set()),  # cos 14° = 0.9703
        (15, 0, {"hidden 1 (alone)", "pooled (alone)"}),  # cos 15° = 0.966
    ],
)
def test_a_check_has_a_bound_of_its_own(found: float, alone: float, expected: set[str]) -> None:
    comparison = compared("int8", found, alone)
    assert failed(comparison) == expected
    assert comparison.inputs == 1


def test_a_stricter_tolerance_of_the_precision_stays() -> None:
    assert failed(compared("fp32", 1, 0)) >= {"hidden 1 (alone)", "pooled (alone)", "pooled (text)"}


@pytest.mark.parametrize(
    ("found", "alone", "line"),
    [
        (
            15,
            0,
            "2 of 8 tensors, first hidden state 1 of a text in a batch, compared with the same "
            "text alone: max abs diff 2.6e-01 (at most 10 + 0.1 of the largest value), "
            "min cosine 0.965926 (at least 0.97)",
        ),
        (
            60,
            60,
            "1 of 8 tensors, first pooled vector of a text: max abs diff 8.7e-01 (at most 1), "
            "min cosine 0.500000 (at least 0.9)",
        ),
    ],
)
def test_a_failure_names_the_check(found: float, alone: float, line: str) -> None:
    assert first_failure(compared("int8", found, alone), tolerances_of("int8", 1)) == line
