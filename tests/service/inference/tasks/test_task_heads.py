"""Probabilities against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, softmax

from service.inference.tasks.task_heads import probabilities

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("logit", [0.0, 3.5, -3.5, 90.0, -80.0, 2000.0, -2000.0])
def test_one_label_is_scipys_expit(logit: float) -> None:
    (found,) = probabilities(np.array([logit], np.float32))
    assert found == pytest.approx(float(expit(logit)), rel=1e-6)


def test_several_labels_are_scipys_softmax() -> None:
    for seed, scale in enumerate((1, 10, 1000)):
        logits = (scale * np.random.default_rng(seed).standard_normal(5)).astype(np.float32)
        found = probabilities(logits)
        np.testing.assert_allclose(found, softmax(logits.astype(np.float64)), rtol=1e-6)
        assert found.dtype == np.float32
