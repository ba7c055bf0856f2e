from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from model.config.encoder import ActivationName
from model.encoder.layers import ACTIVATIONS, FeedForward, GatedFeedForward
from tests.model.attention.test_self_attention import config_of


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_transformers(name: ActivationName) -> None:
    x = torch.linspace(-8, 8, 200)
    torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[name](x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_a_gate_multiplies_what_is_not_activated(bias: bool) -> None:
    layer = {"gated": True, "feed_forward_bias": bias}
    module = GatedFeedForward(config_of(6, 3, intermediate_size=5, hidden_act="silu", layer=layer))
    assert (module.gate.bias is not None) == bias
    x = torch.randn(4, 6)
    gate = functional.silu(functional.linear(x, module.gate.weight, module.gate.bias))
    expected = module.contract(gate * module.expand(x))
    torch.testing.assert_close(module(x), expected)


def test_without_a_gate_there_are_two_maps() -> None:
    module = FeedForward(config_of(6, 3, intermediate_size=5))
    assert sorted(dict(module.named_children())) == ["contract", "expand"]
