"""Shares of tokens in the cosine of two means, and the order that follows."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from service.inference.explanation.explanation import most_promising, shares_in_means
from service.inference.explanation.spans import Span


def test_shares_sum_to_the_cosine_that_torch_has() -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal((n, 6)).astype(np.float32) for n in (5, 3))
    found = shares_in_means([one, other], [2, 0])
    means = torch.from_numpy(one[2:]).mean(dim=0), torch.from_numpy(other).mean(dim=0)
    norms = float(means[0].norm() * means[1].norm())
    cosine = float(functional.cosine_similarity(*means, dim=0))
    for shares, length in zip(found, (5, 3), strict=True):
        assert shares.shape == (length,)
        np.testing.assert_allclose(shares.sum() / norms, cosine, atol=1e-6)
    assert found[0][:2].tolist() == [0, 0]


def test_the_largest_shares_go_first() -> None:
    shares = np.array([0.5, -2.0, 1.0, 0.75, 0.0], np.float32)
    spans = [Span(0, 1, (1, 2)), Span(2, 3, (0,)), Span(4, 5, (3, 4)), Span(6, 7, (0,))]
    assert most_promising(spans, shares, None) == [2, 1, 3, 0]
    assert most_promising(spans, shares, 2) == [2, 1]
    assert most_promising(spans, shares, 9) == [2, 1, 3, 0]
