from __future__ import annotations

from typing import Any, get_args

import entmax
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from model.attention.weights import NORMALIZERS, softmax, sparsemax
from model.config.encoder import NormalizerName

EXACT = {"atol": 1e-12, "rtol": 0.0}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


ROWS = {
    "random": [0.3, -1.2, 0.9, 0.1],
    "ties": [1.0, 1.0, 1.0, 1.0],
    "ties at the edge of the support": [1.0, 0.0, 0.0, -5.0],
    "one wins": [10.0, 1.0, 1.0, 0.0],
    "large": [1e6, 1e6 - 0.25, -1e6, 3.0],
    "very small": [1e-9, 2e-9, 0.0, -1e-9],
    "all negative": [-100.0, -100.5, -101.5, -300.0],
    "one element": [7.0],
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_sparsemax_equals_entmax_on_adversarial_rows(row: list[float]) -> None:
    scores = torch.tensor([row], dtype=torch.float64)
    torch.testing.assert_close(sparsemax(scores), entmax.sparsemax(scores, dim=-1), **EXACT)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("keys", [1, 2, 9, 65])
def test_sparsemax_equals_entmax_on_random_rows(keys: int, scale: float) -> None:
    scores = scale * randn(2, 3, 11, keys)
    weights = sparsemax(scores)
    torch.testing.assert_close(weights, entmax.sparsemax(scores, dim=-1), **EXACT)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 11).double(), **EXACT)


def test_sparsemax_has_the_gradient_of_entmax() -> None:
    ours = randn(6, 9).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    upstream = randn(6, 9)
    (sparsemax(ours) * upstream).sum().backward()
    (entmax.sparsemax(theirs, dim=-1) * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **EXACT)


REFERENCE_NORMALIZERS = {
    "softmax": lambda row: functional.softmax(row, dim=-1),
    "sparsemax": lambda row: entmax.sparsemax(row, dim=-1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("name", REFERENCE_NORMALIZERS)
def test_a_mask_leaves_the_allowed_keys_as_if_alone(
    name: Any, scale: float, dtype: torch.dtype
) -> None:
    scores = (scale * randn(20, 13)).to(dtype)
    mask = torch.rand(20, 13) < 0.5
    mask[0], mask[1], mask[2] = False, True, torch.arange(13) == 12
    scores[3, 5], mask[3, 5] = 1e30, False  # forbidden, and larger than all others
    weights = NORMALIZERS[name](scores, mask)
    assert (weights[1:][~mask[1:]] == 0).all()
    assert weights[0].isfinite().all()  # no key is allowed
    for row, allowed, found in zip(scores[1:], mask[1:], weights[1:], strict=True):
        expected = REFERENCE_NORMALIZERS[name](row[allowed])
        torch.testing.assert_close(
            found[allowed], expected, atol=1e-12 if dtype == torch.float64 else 1e-6, rtol=0
        )
        assert found.sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", REFERENCE_NORMALIZERS)
def test_gradients_stay_finite_under_a_mask(name: Any) -> None:
    scores = randn(3, 4).requires_grad_()
    mask = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    (NORMALIZERS[name](scores, mask) * randn(3, 4)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    somewhere = mask.any(dim=-1)
    assert scores.grad[somewhere][~mask[somewhere]].count_nonzero() == 0


def test_every_normalizer_is_named_in_the_config() -> None:
    assert set(NORMALIZERS) == set(get_args(NormalizerName))


@pytest.mark.parametrize("keys", [2, 31, 512])
def test_sparsemax_sums_in_float32(keys: int) -> None:
    scores = torch.randn(4, 3, 7, keys, generator=torch.Generator().manual_seed(keys)).half()
    mask = torch.arange(keys) < torch.tensor([1, 2, keys // 2 + 1, keys])[:, None, None, None]
    found = sparsemax(scores, mask)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), sparsemax(scores.float(), mask), atol=3e-4, rtol=0)


def test_a_mask_is_finite_in_half_precision_and_leaves_exactly_nothing() -> None:
    scores = torch.tensor([[10000.0, -10000.0, 100.0, 0.0]]).half()
    mask = torch.tensor([[False, False, True, True]])
    assert softmax(scores, mask).tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_sparsemax_keeps_its_type(dtype: torch.dtype) -> None:
    assert sparsemax(randn(2, 5).to(dtype)).dtype == dtype
