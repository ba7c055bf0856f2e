"""Scores of texts with a query, and their order."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from service.api.drop_in.ranking import Ranking
from service.inference.timings import Timings

LOGITS = (-50.0, -40.0, -50.0, 3.0)


def _ranking(*, logits: bool) -> Ranking:
    return Ranking([np.array([x], np.float32) for x in LOGITS], logits, Timings(0, 0.0, 0.0))


def test_equal_scores_keep_their_order_and_small_ones_theirs() -> None:
    """A sigmoid of −40 and of −50 differ; of equal texts the first comes first."""
    ranking = _ranking(logits=True)
    assert ranking.order() == [3, 1, 0, 2]
    assert ranking.scores() == pytest.approx(expit(LOGITS), rel=1e-6)
    assert ranking.scores(raw=True) == list(LOGITS)


def test_max_sim_is_given_as_it_is() -> None:
    assert _ranking(logits=False).scores() == list(LOGITS)
