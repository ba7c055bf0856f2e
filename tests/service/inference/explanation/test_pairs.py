from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from service.inference.explanation.pairs import PairExplanation, span_sums
from service.inference.explanation.spans import Span

TOKENS = [Span(n, n + 1, (n,)) for n in range(3)]


def test_methods_agree_as_far_as_their_sums_do() -> None:
    matrix = np.diag(np.array([3, 2, 1], np.float32))
    losses = np.array([0.3, 0.2, 0.1], np.float32)
    found = PairExplanation(6.5, matrix, -matrix, (losses, losses), (TOKENS, TOKENS))
    assert found.agreement() == {"pairs": pytest.approx(1), "decomposition": pytest.approx(-1)}
    assert found.error(matrix) == pytest.approx(0.5)
    two, ones = TOKENS[:2], np.ones((2, 2), np.float32)
    constant = PairExplanation(1.0, ones, None, (losses[:2], losses[:2]), (two, two))
    assert constant.agreement() == {"pairs": None}
    assert PairExplanation(1.0, matrix).agreement() == {}


def test_agreement_is_over_the_spans_that_were_occluded() -> None:
    """Expected: scipy's Spearman of the sums by hand."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((5, 3)).astype(np.float32)
    one = [Span(0, 3, (0, 2)), Span(4, 5, (1,)), Span(6, 9, (3, 4))]
    losses = np.array([0.3, np.nan, -0.2], np.float32), np.array([0.1, 0.2, np.nan], np.float32)
    found = PairExplanation(0.5, matrix, None, losses, (one, TOKENS))
    rows, columns = matrix.sum(axis=1), matrix.sum(axis=0)
    sums = [rows[0] + rows[2], rows[3] + rows[4], columns[0], columns[1]]
    expected = spearmanr(sums, [0.3, -0.2, 0.1, 0.2]).statistic
    assert found.agreement() == {"pairs": pytest.approx(expected)}
    np.testing.assert_allclose(span_sums(one, rows)[2], rows[3] + rows[4])
    nothing = np.full(3, np.nan, np.float32)
    late = PairExplanation(0.5, matrix, matrix * np.nan, (nothing, nothing), (one, TOKENS))
    assert late.agreement() == {"pairs": None, "decomposition": None}


def test_a_pair_is_partial_where_less_is_computed_than_is_wanted() -> None:
    losses = np.array([0.3, np.nan, -0.2], np.float32), np.array([0.1, 0.2, np.nan], np.float32)
    heads = np.array([[0.1, np.nan]], np.float32)
    found = PairExplanation(
        0.5,
        decomposition=np.full((3, 3), np.nan, np.float32),
        occlusion=losses,
        heads=heads,
        wanted={"occlusion": 4, "decomposition": 1, "heads": 2},
    )
    assert found.computed == {"occlusion": 4, "decomposition": 0, "heads": 1}
    assert found.partial
    assert not PairExplanation(0.5, occlusion=losses, wanted={"occlusion": 4}).partial
    assert not PairExplanation(0.5).partial
