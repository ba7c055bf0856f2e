from __future__ import annotations

import numpy as np
import pytest

from service.inference.explanation.pairs import PairExplanation


def test_methods_agree_as_far_as_their_sums_do() -> None:
    matrix = np.diag(np.array([3, 2, 1], np.float32))
    losses = np.array([0.3, 0.2, 0.1], np.float32)
    found = PairExplanation(6.5, matrix, -matrix, (losses, losses))
    assert found.agreement() == {"pairs": pytest.approx(1), "decomposition": pytest.approx(-1)}
    assert found.error(matrix) == pytest.approx(0.5)
    constant = PairExplanation(1.0, np.ones((2, 2), np.float32), None, (losses[:2], losses[:2]))
    assert constant.agreement() == {"pairs": None}
    assert PairExplanation(1.0, matrix).agreement() == {}
