"""Pooling by masks and by attention, against numpy and transformers' own module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.nn import functional
from transformers import SiglipVisionConfig
from transformers.models.bart import modeling_bart as bart
from transformers.models.mbart import modeling_mbart as mbart
from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.config.encoder import EncoderConfig
from model.families.registry import parse_config
from model.numerics.attention_pooling import PREFIX, AttentionPooling, pooling_shapes
from model.numerics.comparison import shift_right
from model.numerics.pooling import (
    PoolingMode,
    PoolingModes,
    l2_normalize,
    modes_of,
    pool,
    pooled_parts,
)
from model.numerics.vector_modules import ENCODER_ACTIVATIONS
from tests.tower_oracle import frozen, jacobian

MODES: tuple[PoolingMode, ...] = (
    "mean",
    "cls",
    "max",
    "last",
    "mean_sqrt_len_tokens",
    "weightedmean",
)
HIDDEN = np.array([[1.0, -2.0, 0.5], [4.0, 0.0, -3.5], [-2.0, -1.0, 6.0]], np.float32)


@pytest.mark.parametrize(("tokens", "first"), [(1, 0), (2, 1), (37, 0), (37, 9), (512, 0)])
@pytest.mark.parametrize("modes", [*MODES, MODES, ("max", "mean", "max")], ids=str)
def test_pooling_equals_sentence_transformers(modes: PoolingModes, tokens: int, first: int) -> None:
    hidden = torch.randn(1, tokens, 48, generator=torch.Generator().manual_seed(tokens))
    names = ["lasttoken" if mode == "last" else mode for mode in modes_of(modes)]
    theirs = Pooling(48, names, include_prompt=False)
    mask = torch.ones(1, tokens, dtype=torch.int64)
    features = {"token_embeddings": hidden, "attention_mask": mask, "prompt_length": first}
    expected = theirs(features)["sentence_embedding"][0].numpy()
    found = pool(hidden[0].numpy(), modes, first)
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("first", "left_out"),
    [
        (0, (0,)),
        (0, (3,)),
        (0, (8,)),
        (0, (0, 1, 4)),
        (0, (3, 4, 5, 8)),
        (2, (2,)),
        (2, (5, 6)),
        (2, (8,)),
    ],
)
@pytest.mark.parametrize("modes", [*MODES, ("max", "mean")], ids=str)
def test_tokens_left_out_are_those_that_sentence_transformers_masks(
    modes: PoolingModes, first: int, left_out: tuple[int, ...]
) -> None:
    hidden = torch.randn(1, 9, 48, generator=torch.Generator().manual_seed(left_out[0]))
    names = ["lasttoken" if mode == "last" else mode for mode in modes_of(modes)]
    mask = torch.ones(1, 9, dtype=torch.int64)
    mask[0, list(left_out)] = 0
    features = {"token_embeddings": hidden, "attention_mask": mask, "prompt_length": first}
    expected = Pooling(48, names, include_prompt=False)(features)["sentence_embedding"][0].numpy()
    found = pool(hidden[0].numpy(), modes, first, left_out)
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("mode", [*MODES, ("cls", "last")], ids=str)
def test_a_pooled_vector_is_not_a_view(mode: PoolingModes) -> None:
    hidden = HIDDEN.copy()
    pool(hidden, mode)[:] = 99
    assert np.array_equal(hidden, HIDDEN)


@pytest.mark.parametrize(
    "vector",
    [[3.0, 4.0], [-1.0, 1.0, 0.5], [1e-13, 0.0], [0.0, 0.0], [1e15, 1e15], [1e-10] * 7],
    ids=str,
)
def test_l2_normalize_equals_torch(vector: list[float]) -> None:
    expected = functional.normalize(torch.tensor(vector), dim=0).numpy()
    found = l2_normalize(np.array(vector, np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=0)
    assert found.dtype == np.float32


@pytest.mark.parametrize("mode", [*MODES, ("cls", "max")], ids=str)
@pytest.mark.parametrize("first", [0, 2])
def test_shares_of_a_pooled_vector_sum_to_it(mode: PoolingModes, first: int) -> None:
    rng = np.random.default_rng(0)
    shares = rng.standard_normal((5, 5, 6), np.float32)
    parts = np.concatenate([shares.sum(axis=1, keepdims=True), shares], axis=1)
    found = pooled_parts(parts, mode, first)
    expected = pool(parts[:, 0], mode, first)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    np.testing.assert_allclose(found[1:].sum(axis=0), expected, atol=1e-5)


def test_the_mean_of_shares_is_each_tokens_mean() -> None:
    parts: Any = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_allclose(pooled_parts(parts, "mean"), parts.mean(axis=0))
    assert torch.from_numpy(pooled_parts(parts, "last")).equal(torch.from_numpy(parts[1]))


SIZES = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "layer_norm_eps": 1e-3,
    "num_hidden_layers": 1,
}


def config_of(activation: str) -> EncoderConfig:
    return parse_config(SIZES | {"model_type": "siglip_vision_model", "hidden_act": activation})


@pytest.mark.parametrize("activation", sorted(ENCODER_ACTIVATIONS))
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


@pytest.mark.parametrize("labels", [[5], [5, 6, 7, 2], [1, 9]])
def test_labels_are_shifted_as_transformers_does(labels: list[int]) -> None:
    ids, given = np.array(labels, np.int64), torch.tensor([labels])
    expected = bart.shift_tokens_right(given, 0, 3)[0].tolist()
    assert shift_right(ids, 3).tolist() == expected
    assert shift_right(ids, None).tolist() == mbart.shift_tokens_right(given, 0)[0].tolist()
    assert ids.tolist() == labels


@pytest.mark.parametrize("start", [3, None])
def test_no_labels_stay_none(start: int | None) -> None:
    assert shift_right(np.array([], np.int64), start).tolist() == []
