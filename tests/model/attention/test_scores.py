from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from model.attention.scores import (
    SCORES,
    additive_score,
    bilinear_score,
    cosine_score,
    scaled_dot_product_score,
)
from model.config.encoder import ScoreName

EXACT = {"atol": 1e-12, "rtol": 0.0}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def dot(a: Tensor, b: Tensor) -> float:
    return math.fsum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def norm(a: Tensor) -> float:
    return math.sqrt(dot(a, a))


def scored_by_loop(
    query: Tensor, key: Tensor, formula: Callable[[int, Tensor, Tensor], float]
) -> Tensor:
    """Return formula(head, q, k) for every pair, `[B, N, T, S]`."""
    scores = torch.empty(*query.shape[:3], key.shape[2], dtype=torch.float64)
    for b, n, t, s in itertools.product(*map(range, scores.shape)):
        scores[b, n, t, s] = formula(n, query[b, n, t], key[b, n, s])
    return scores


def test_scaled_dot_product_score_is_its_formula() -> None:
    query, key = randn(2, 3, 4, 5), randn(2, 3, 6, 5)
    expected = scored_by_loop(query, key, lambda _, q, k: dot(q, k) / math.sqrt(5))
    torch.testing.assert_close(scaled_dot_product_score(query, key), expected, **EXACT)


def test_cosine_score_is_its_formula() -> None:
    query, key = randn(2, 3, 4, 5), randn(2, 3, 6, 5)
    expected = scored_by_loop(query, key, lambda _, q, k: dot(q, k) / (norm(q) * norm(k)))
    torch.testing.assert_close(cosine_score(query, key), expected, **EXACT)


@pytest.mark.parametrize("length", [0.0, 1e-12, 1e-9, 1e-8, 1e-7, 1e-3, 1e9])
def test_cosine_score_of_short_vectors_equals_torch(length: float) -> None:
    query, key = randn(1, 1, 2, 3), randn(1, 1, 2, 3)
    for vectors in (query, key):
        vectors[..., 0, :] *= length / vectors[..., 0, :].norm()
    expected = functional.cosine_similarity(query.unsqueeze(-2), key.unsqueeze(-3), dim=-1)
    torch.testing.assert_close(cosine_score(query, key), expected, **EXACT)


@pytest.mark.parametrize(("p_q", "p_k"), [(4, 4), (3, 5)])
def test_bilinear_score_is_its_formula(p_q: int, p_k: int) -> None:
    query, key = randn(2, 3, 4, p_q), randn(2, 3, 6, p_k)
    weight, bias = randn(3, p_q, p_k), randn(3)
    expected = scored_by_loop(
        query,
        key,
        lambda n, q, k: (
            math.fsum(float(x) * dot(row, k) for x, row in zip(q, weight[n], strict=True))
            + float(bias[n])
        ),
    )
    torch.testing.assert_close(bilinear_score(query, key, weight, bias), expected, **EXACT)


@pytest.mark.parametrize(("p_q", "p_k", "a"), [(4, 4, 4), (3, 5, 2), (2, 3, 1)])
def test_additive_score_is_its_formula(p_q: int, p_k: int, a: int) -> None:
    query, key = randn(2, 3, 4, p_q), randn(2, 3, 6, p_k)
    query_weight, key_weight, vector = randn(3, a, p_q), randn(3, a, p_k), randn(3, a)

    def formula(n: int, q: Tensor, k: Tensor) -> float:
        hidden = [
            math.tanh(dot(query_weight[n, i], q) + dot(key_weight[n, i], k)) for i in range(a)
        ]
        return math.fsum(float(v) * h for v, h in zip(vector[n], hidden, strict=True))

    scores = additive_score(query, key, query_weight, key_weight, vector)
    torch.testing.assert_close(scores, scored_by_loop(query, key, formula), **EXACT)


class LargestTensor(TorchDispatchMode):
    """Mode that records the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_additive_score_never_holds_all_hidden_features_of_all_pairs() -> None:
    b, n, t, s, a = 2, 3, 16, 17, 8
    query, key = randn(b, n, t, a), randn(b, n, s, a)
    with LargestTensor() as largest:
        additive_score(query, key, randn(n, a, a), randn(n, a, a), randn(n, a))
    assert largest.numel == b * n * t * s

    with LargestTensor() as naive:  # the size of the naive computation
        torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))
    assert naive.numel == b * n * t * s * a


def test_every_score_is_named_in_the_config() -> None:
    assert set(SCORES) == set(get_args(ScoreName))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_cosine_keeps_its_type(dtype: torch.dtype) -> None:
    query, key = torch.randn(2, 1, 2, 5, 4).to(dtype)
    assert cosine_score(query, key).dtype == dtype
    wide = (query.double(), key.double())
    close = {torch.float16: 2e-3, torch.float32: 1e-6, torch.float64: 1e-15}[dtype]
    torch.testing.assert_close(
        cosine_score(query, key).double(), cosine_score(*wide), atol=close, rtol=0
    )


def test_a_zero_vector_has_a_cosine_in_half_precision() -> None:
    """The floor of its norm, 1e-8, is 0 there, and 0 / 0 would be NaN."""
    zero, key = torch.zeros(1, 1, 2, 4).half(), torch.ones(1, 1, 3, 4).half()
    assert torch.equal(cosine_score(zero, key), torch.zeros(1, 1, 2, 3).half())
