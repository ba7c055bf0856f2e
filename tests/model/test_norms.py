from __future__ import annotations

import pytest
import torch
from torch import nn

from model.norms import RMSNorm, normalize, rms_norm


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_rms_norm_equals_torchs(eps: float) -> None:
    x, reference = torch.randn(3, 4, 8), nn.RMSNorm(8, eps=eps)
    nn.init.normal_(reference.weight)
    ours = RMSNorm(8, eps)
    ours.load_state_dict(reference.state_dict())
    torch.testing.assert_close(ours(x), reference(x))
    torch.testing.assert_close(normalize("rms_norm", x, ours.weight, None, eps), reference(x))


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_equals_torchs(bias: bool) -> None:
    x, reference = torch.randn(3, 8), nn.LayerNorm(8, eps=1e-5, bias=bias)
    nn.init.normal_(reference.weight)
    found = normalize("layer_norm", x, reference.weight, reference.bias, 1e-5)
    torch.testing.assert_close(found, reference(x))


def test_squares_of_half_precision_do_not_overflow() -> None:
    x = torch.full((1, 4), 300.0, dtype=torch.float16)  # 300² is infinite there
    found = rms_norm(x, torch.ones(4, dtype=torch.float16), 1e-6)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, torch.ones(1, 4, dtype=torch.float16))
