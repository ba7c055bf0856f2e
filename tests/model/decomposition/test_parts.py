from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from model.config.encoder import NormName
from model.decomposition.layers import normalized, projected, shifted, slope
from model.encoder.layers import ACTIVATIONS
from model.norms import normalize

D = 6


def parts_of(tokens: int = 4, shares: int = 5) -> Tensor:
    """Return random shares, preceded by their sum, `[C, P, d]`."""
    found = torch.randn(tokens, shares, D, generator=torch.Generator().manual_seed(1))
    return torch.cat((found.sum(dim=1, keepdim=True), found), dim=1)


def assert_complete(parts: Tensor, state: Tensor) -> None:
    torch.testing.assert_close(parts[:, 0], state, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(parts[:, 1:].sum(dim=1), state, atol=1e-5, rtol=1e-5)


def test_a_share_takes_as_much_of_a_bias_as_it_has_of_its_direction() -> None:
    shares = torch.tensor([[1.0, 5.0], [-3.0, 1.0], [0.0, 7.0]])
    bias = torch.tensor([8.0, 0.0])
    found = shifted(torch.cat((shares.sum(dim=0, keepdim=True), shares))[None], bias)[0]
    taken = torch.tensor([[8.0, 0.0], [2.0, 0.0], [6.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(found[1:], shares + taken[1:])
    torch.testing.assert_close(found[0], shares.sum(dim=0) + bias)


@pytest.mark.parametrize("shares", [1, 4])
def test_a_bias_that_no_share_points_to_is_shared_evenly(shares: int) -> None:
    bias = torch.arange(1.0, D + 1)
    found = shifted(torch.zeros(2, shares + 1, D), bias)
    torch.testing.assert_close(found[:, 1:], (bias / shares).expand(2, shares, D))
    torch.testing.assert_close(found[:, 0], bias.expand(2, D))


def test_a_bias_of_zeros_and_none_change_nothing() -> None:
    parts = parts_of()
    assert torch.equal(shifted(parts, torch.zeros(D)), parts)
    assert shifted(parts, None) is parts


def test_a_projection_is_of_each_part() -> None:
    parts, weight, bias = parts_of(), torch.randn(3, D), torch.randn(3)
    assert_complete(projected(parts, weight, bias), functional.linear(parts[:, 0], weight, bias))
    torch.testing.assert_close(projected(parts, weight)[:, 2], parts[:, 2] @ weight.T)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_norm_sums_to_the_states(kind: NormName, biased: bool) -> None:
    parts, weight = parts_of(), torch.randn(D)
    bias = torch.randn(D) if biased else None
    expected = normalize(kind, parts[:, 0], weight, bias, 0.1)
    if kind == "rms_norm" and bias is not None:
        expected = expected + bias
    assert_complete(normalized(parts, kind, weight, bias, 0.1), expected)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_its_slope_times_the_state(name: str) -> None:
    x = torch.tensor([0.0, 1e-9, -1e-20, 1e-5, -0.3, 7.0, -50.0])
    function = ACTIVATIONS[name]  # type: ignore[index]
    found = slope(x, function)
    assert found.isfinite().all()
    torch.testing.assert_close(found * x, function(x))
