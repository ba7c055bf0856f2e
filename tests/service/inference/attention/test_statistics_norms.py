"""Norms of the heads' contributions, against vectors added one by one in float64."""

from __future__ import annotations

import numpy as np
import pytest

from service.inference.attention.statistics import head_norms, norm_shares

N, S, H = 5, 9, 11
NUMBERS = np.random.default_rng(0)
MAPS = NUMBERS.dirichlet(np.full(S, 0.3), (N, S)).astype(np.float32)
VALUES = NUMBERS.normal(size=(S, N, H)).astype(np.float32)
PRODUCTS = VALUES @ VALUES.transpose(0, 2, 1)


def test_the_norms_are_those_of_the_vectors_that_each_head_adds() -> None:
    added = MAPS.astype(np.float64)[..., None] * VALUES.transpose(1, 0, 2)[:, None]
    wanted = np.linalg.norm(added, axis=-1)
    np.testing.assert_allclose(head_norms(MAPS, PRODUCTS), wanted, rtol=1e-5)


@pytest.mark.parametrize("block", [1, N * S * 4, 1 << 18])
def test_the_shares_are_those_of_the_sum_over_heads(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.attention.statistics.BLOCK_WEIGHTS", block)
    added = MAPS.astype(np.float64)[..., None] * VALUES.transpose(1, 0, 2)[:, None]
    wanted = np.linalg.norm(added.sum(axis=0), axis=-1)
    wanted /= wanted.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(norm_shares(MAPS, PRODUCTS), wanted, atol=1e-6)


def test_heads_that_cancel_each_other_out_give_nothing() -> None:
    maps = np.repeat(MAPS[:1], 2, axis=0)
    products = np.tile(np.float32([[3, -3], [-3, 3]]), (S, 1, 1))
    assert not norm_shares(maps, products).any()
