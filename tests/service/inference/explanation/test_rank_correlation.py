"""Spearman's correlation against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from service.inference.explanation.rank_correlation import spearman


@pytest.mark.parametrize("values", [50, 5, 2])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_scipy(values: int, seed: int) -> None:
    """With many equal numbers, and with few."""
    one, other = np.random.default_rng(seed).integers(0, values, (2, 31))
    other = other - one // 2
    assert spearman(one, other) == pytest.approx(spearmanr(one, other).statistic, abs=1e-12)


def test_its_ends() -> None:
    assert spearman([1, 2, 9], [-3.0, 0.5, 0.6]) == pytest.approx(1)
    assert spearman([1, 2, 9], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 1], [3, 2, 1]) is None
    assert spearman([1], [2]) is None
