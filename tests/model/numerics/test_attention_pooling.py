"""Pooling by attention against transformers' own module, which torch's attention computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.config.encoder import EncoderConfig
from model.families.registry import parse_config
from model.numerics.attention_pooling import (
    POOLED_ACTIVATIONS,
    PREFIX,
    AttentionPooling,
    pooling_shapes,
)
from model.numerics.pooling import pool, pooled_parts
from tests.tower_oracle import frozen, jacobian

SIZES = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "layer_norm_eps": 1e-3,
    "num_hidden_layers": 1,
}


def config_of(activation: str) -> EncoderConfig:
    return parse_config(SIZES | {"model_type": "siglip_vision_model", "hidden_act": activation})


@pytest.mark.parametrize("activation", sorted(POOLED_ACTIVATIONS))
def test_it_equals_transformers(activation: str) -> None:
    torch.manual_seed(3)
    head = SiglipMultiheadAttentionPoolingHead(SiglipVisionConfig(**SIZES, hidden_act=activation))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    tensors = {PREFIX + name: tensor.numpy() for name, tensor in head.state_dict().items()}
    config = config_of(activation)
    shapes = pooling_shapes(config)
    assert {name: tensors[PREFIX + name].shape for name in shapes} == shapes
    hidden = torch.randn(1, 7, 12)
    with torch.no_grad():
        expected = head(hidden)[0].numpy()
        _, weights = head.attention(head.probe, hidden, hidden, average_attn_weights=False)
    pooling = AttentionPooling(config, tensors)
    found = pooling(hidden[0].numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)
    np.testing.assert_allclose(pooling.weights(hidden[0].numpy()), weights[0, :, 0], atol=1e-6)


def test_shares_are_those_of_transformers_module_with_its_non_linear_parts_frozen() -> None:
    """Of tokens that have states of their own; with biases they sum to the vector."""
    torch.manual_seed(3)
    head = SiglipMultiheadAttentionPoolingHead(SiglipVisionConfig(**SIZES)).double()
    hidden = torch.randn(1, 5, 12, dtype=torch.float64)
    parts = np.zeros((5, 6, 12), np.float32)
    parts[:, 0] = hidden[0].numpy()
    parts[range(5), range(1, 6)] = hidden[0].numpy()
    config = config_of("gelu_pytorch_tanh")
    for scale in (0.0, 1.0):
        with torch.no_grad():
            for name, parameter in head.named_parameters():
                of_bias = name.endswith("bias")
                parameter.copy_(torch.randn_like(parameter) * (scale if of_bias else 1.0))
        tensors = {
            PREFIX + name: tensor.numpy().astype(np.float32)
            for name, tensor in head.state_dict().items()
        }
        found = AttentionPooling(config, tensors).parts(parts)
        expected = head(hidden)[0].detach().numpy()
        largest = np.abs(expected).max()
        np.testing.assert_allclose(found[0], expected, atol=1e-5 * largest)
        np.testing.assert_allclose(found[1:].sum(axis=0), expected, atol=1e-5 * largest)
        if not scale:
            with frozen():
                gradients = jacobian(lambda states: head(states)[0], hidden)
            shares = torch.einsum("dsh,sh->sd", gradients, hidden[0]).numpy()
            np.testing.assert_allclose(found[1:], shares, atol=1e-5 * largest)


def test_tokens_that_are_left_out_are_masked_as_keys() -> None:
    torch.manual_seed(3)
    head = SiglipMultiheadAttentionPoolingHead(SiglipVisionConfig(**SIZES)).eval()
    tensors = {PREFIX + name: tensor.numpy() for name, tensor in head.state_dict().items()}
    config, hidden = config_of("gelu_pytorch_tanh"), torch.randn(1, 7, 12)
    mask = torch.zeros(1, 7, dtype=torch.bool)
    mask[0, [0, 3]] = True
    with torch.no_grad():
        attended, _ = head.attention(head.probe, hidden, hidden, key_padding_mask=mask)
        expected = (attended + head.mlp(head.layernorm(attended)))[0, 0].numpy()
    sentence = SentenceConfig(pooling="attention", max_length=7)
    vectors = TextVectors.with_tensors(sentence, config, tensors)
    found = vectors.pool(hidden[0].numpy(), "attention", 1, (3,))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_functions_without_its_parameters_refuse_it() -> None:
    with pytest.raises(ValueError, match="has parameters"):
        pool(np.ones((2, 3), np.float32), "attention")
    with pytest.raises(ValueError, match="has parameters"):
        pooled_parts(np.ones((2, 3, 4), np.float32), "attention")
