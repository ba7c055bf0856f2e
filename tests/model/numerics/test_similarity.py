"""Agreement about similar texts, by scipy's rank correlation and counted neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from model.numerics.similarity import NEIGHBOURS, TAIL, similarity, spearman

EXACT = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
BENT = EXACT + np.random.default_rng(1).normal(scale=0.3, size=EXACT.shape).astype(np.float32)


def test_figures_are_scipys() -> None:
    found = similarity(EXACT, BENT)
    one, other = (1 - cdist(each, each, "cosine") for each in (EXACT, BENT))
    pairs = np.triu_indices(len(EXACT), 1)
    assert found.rank_correlation == pytest.approx(
        spearmanr(one[pairs], other[pairs]).statistic, abs=6e-5
    )
    cosines = 1 - np.diag(cdist(EXACT, BENT, "cosine"))
    assert found.mean_cosine == pytest.approx(cosines.mean(), abs=6e-5)
    assert found.low_cosine == pytest.approx(np.quantile(cosines, TAIL), abs=6e-5)
    assert found.least_cosine == pytest.approx(cosines.min(), abs=6e-5)
    recall = 0.0
    # the text itself is its own nearest neighbour, and first in its row
    for row in range(len(EXACT)):
        mine, theirs = (set(np.argsort(-m[row])[1 : NEIGHBOURS + 1]) for m in (one, other))
        recall += len(mine & theirs) / NEIGHBOURS
    assert found.neighbour_recall == pytest.approx(recall / len(EXACT), abs=6e-5)
    assert 0.3 < found.neighbour_recall < 0.99


def test_scale_and_rotation_change_no_ranking() -> None:
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(8, 8)))[0]
    found = similarity(EXACT, 3 * EXACT @ rotation)
    assert (found.rank_correlation, found.neighbour_recall) == (1, 1)
    assert found.mean_cosine < 0.9


def test_texts_that_are_all_alike_have_no_order() -> None:
    alike = np.eye(4, dtype=np.float32)
    assert similarity(alike, 2 * alike).rank_correlation == 1
    assert similarity(alike, EXACT[:4, :4]).rank_correlation == 0


def test_what_is_not_finite_is_like_nothing() -> None:
    broken = EXACT.copy()
    broken[3, 2] = np.nan
    found = similarity(EXACT, broken)
    assert set(found.model_dump(exclude={"texts"}).values()) == {0}


NUMBERS = st.lists(st.integers(-3, 3), min_size=2, max_size=40)


@given(NUMBERS, st.randoms(use_true_random=False))
def test_spearman_is_scipys(values: list[int], chance: object) -> None:
    others = [*values]
    chance.shuffle(others)  # type: ignore[attr-defined]
    if len(set(values)) > 1:
        a, b = np.array(values, np.float64), np.array(others, np.float64)
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_spearman_of_equal_numbers_is_nan_without_a_warning() -> None:
    equal, rising = np.ones(3), np.arange(3.0)
    assert np.isnan(
        [spearman(equal, rising), spearman(rising, equal), spearman(equal, equal)]
    ).all()
    assert np.isnan(spearman(rising[:1], rising[:1]))
    assert (spearman(rising, rising**3), spearman(rising, -rising)) == (1, -1)
