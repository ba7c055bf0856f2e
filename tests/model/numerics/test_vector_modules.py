"""Vector modules against torch and sentence-transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.base.modules import Dense as TheirDense
from torch import nn

from model.numerics.vector_modules import (
    DENSE_ACTIVATIONS,
    Dense,
    DenseActivation,
    LayerNorm,
    Normalize,
    VectorModule,
    size_after,
)

X = np.concatenate(
    [np.linspace(-90, 90, 33), np.linspace(-3, 3, 31), np.zeros(1)], dtype=np.float32
).reshape(13, 5)


def tensors_of(module: nn.Module) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("activation", DENSE_ACTIVATIONS)
def test_activations_are_torchs(activation: DenseActivation) -> None:
    dense = Dense(in_features=5, out_features=5, bias=False, activation=activation)
    found = dense(X, {"linear.weight": np.eye(5, dtype=np.float32)})
    expected = getattr(nn, activation)()(torch.from_numpy(X)).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize(
    ("n", "bias", "residual"), [(3, True, False), (3, False, True), (5, True, True)]
)
def test_dense_is_the_librarys(n: int, bias: bool, residual: bool) -> None:
    torch.manual_seed(0)
    theirs = TheirDense(5, n, bias=bias, use_residual=residual)
    ours = Dense(in_features=5, out_features=n, bias=bias, residual=residual)
    tensors = tensors_of(theirs)
    assert {name: tensor.shape for name, tensor in tensors.items()} == ours.shapes()
    x = X / 30
    with torch.inference_mode():
        expected = theirs({"sentence_embedding": torch.from_numpy(x)})["sentence_embedding"]
    np.testing.assert_allclose(ours(x, tensors), expected.numpy(), atol=1e-6)


def test_layer_norm_is_torchs() -> None:
    norm = nn.LayerNorm(5)
    torch.manual_seed(0)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
        expected = norm(torch.from_numpy(X)).numpy()
    tensors = {f"norm.{name}": tensor for name, tensor in tensors_of(norm).items()}
    ours = LayerNorm(dimension=5)
    assert {name: tensor.shape for name, tensor in tensors.items()} == ours.shapes()
    np.testing.assert_allclose(ours(X, tensors), expected, atol=1e-5)


def test_shares_of_a_layer_norm_keep_the_deviation_of_their_sum() -> None:
    """Each share is the torch norm's own linear map of it, with the deviation as a constant."""
    torch.manual_seed(0)
    norm, shares = nn.LayerNorm(5).double(), torch.randn(3, 5, dtype=torch.float64)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    deviation = torch.sqrt(shares.sum(dim=0).var(unbiased=False) + norm.eps)
    with torch.no_grad():
        centred = shares - shares.mean(dim=1, keepdim=True)
        expected = centred / deviation * norm.weight + norm.bias / 3
        total = norm(shares.sum(dim=0))
    tensors = {f"norm.{name}": tensor for name, tensor in tensors_of(norm).items()}
    found = LayerNorm(dimension=5).shares(shares.numpy(), tensors)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=0), total.numpy(), atol=1e-6)


def test_normalize_is_torchs() -> None:
    x = np.concatenate([X, np.zeros((1, 5), np.float32), np.full((1, 5), 1e-15, np.float32)])
    expected = nn.functional.normalize(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(Normalize()(x, {}), expected, atol=1e-6)


def test_sizes_follow_the_modules() -> None:
    wide, narrow = Dense(in_features=4, out_features=9), Dense(in_features=9, out_features=2)
    chains: list[tuple[list[VectorModule], int | None]] = [
        ([], 4),
        ([Normalize()], 4),
        ([wide], 9),
        ([wide, Normalize(), LayerNorm(dimension=9), narrow], 2),
        ([narrow], None),
        ([wide, LayerNorm(dimension=4)], None),
    ]
    assert [size_after(modules, 4) for modules, _ in chains] == [size for _, size in chains]
