"""Attention over packed texts equals each text alone, and torch's own over padded texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from model.attention.multi_head import AttentionSizes, MultiHeadAttention
from model.attention.scores import SCORES
from model.attention.self_attention import SelfAttention, attention_rule
from model.attention.weights import NORMALIZERS
from model.config.encoder import EncoderConfig, NormalizerName, ScoreName
from model.numerics.batch import pack
from model.packing import PackedBatch

EXACT = {"atol": 1e-12, "rtol": 0.0}
LENGTHS = [5, 1, 9, 3]


def config_of(hidden_size: int, heads: int, **changes: Any) -> EncoderConfig:
    """Return a config of one layer whose other sizes do not affect its attention."""
    others = {
        "model_type": "bert",
        "vocab_size": 9,
        "num_hidden_layers": 1,
        "intermediate_size": 1,
        "hidden_act": "gelu",
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    sizes = {"hidden_size": hidden_size, "num_attention_heads": heads}
    return EncoderConfig.model_validate(others | sizes | changes)


def self_attention(hidden_size: int, heads: int, **changes: Any) -> SelfAttention:
    """Return the attention of its only layer."""
    config = config_of(hidden_size, heads, **changes)
    return SelfAttention(config, 0, attention_rule(config))


def twin_of(module: SelfAttention) -> MultiHeadAttention:
    """Return plain multi-head attention with the same weights, itself tested against torch's."""
    sizes = AttentionSizes.uniform(module.query.in_features, module.num_heads)
    twin = MultiHeadAttention(sizes, module.rule.score, module.rule.normalizer)
    twin.load_state_dict(module.state_dict())
    return twin.to(module.query.weight.dtype)


def batch_of(lengths: list[int]) -> PackedBatch:
    rng = np.random.default_rng(lengths)
    return PackedBatch.of(pack([(rng.integers(0, 9, n), rng.integers(0, 2, n)) for n in lengths]))


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def attended(
    module: SelfAttention, hidden: Tensor, batch: PackedBatch, head_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the output and the weights."""
    return module.attend(hidden, batch, head_mask, {}), module.maps(hidden, batch, {})


def assert_packed_equals_alone(
    module: SelfAttention, lengths: list[int], *, three_axes: bool
) -> None:
    batch, d, twin = batch_of(lengths), module.query.in_features, twin_of(module)
    hidden = randn(sum(lengths), d, seed=1)
    head_mask = randn(len(lengths), module.num_heads, seed=2)
    with torch.no_grad():
        output, weights = attended(module, hidden[None] if three_axes else hidden, batch, head_mask)
        assert output.dim() == (3 if three_axes else 2)
        texts = output.reshape(sum(lengths), -1).split(lengths)
        for row, x in enumerate(hidden.split(lengths)):
            expected, alone = twin(x[None], x[None], x[None], head_mask=head_mask[[row]])
            n = len(x)
            torch.testing.assert_close(texts[row], expected[0], **EXACT)
            torch.testing.assert_close(weights[row, :, :n, :n], alone[0], **EXACT)
            assert weights[row, :, :, n:].count_nonzero() == 0
    assert weights.isfinite().all()
    assert weights.shape == (len(lengths), module.num_heads, max(lengths), max(lengths))


@pytest.mark.parametrize("three_axes", [False, True], ids=["[T, d]", "[1, T, d]"])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
def test_packed_attention_equals_each_text_alone(
    score: ScoreName, normalizer: NormalizerName, three_axes: bool
) -> None:
    torch.manual_seed(0)
    chosen = {"attention_score": score, "attention_normalizer": normalizer}
    module = self_attention(6, 3, **chosen).double()
    assert_packed_equals_alone(module, LENGTHS, three_axes=three_axes)


@pytest.mark.parametrize("three_axes", [False, True], ids=["[T, d]", "[1, T, d]"])
@pytest.mark.parametrize("lengths", [[1], [6], [1, 1, 1], [4, 4], [1, 17, 2]], ids=str)
def test_any_lengths_equal_each_text_alone(lengths: list[int], three_axes: bool) -> None:
    torch.manual_seed(0)
    module = self_attention(8, 2).double()
    assert_packed_equals_alone(module, lengths, three_axes=three_axes)


@pytest.mark.parametrize("three_axes", [False, True], ids=["[T, d]", "[1, T, d]"])
def test_packed_attention_equals_torchs_own_padded(three_axes: bool) -> None:
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64).eval()
    nn.init.normal_(reference.in_proj_bias)
    nn.init.normal_(reference.out_proj.bias)
    module = self_attention(12, 3).double()
    names = ("query", "key", "value")
    parameters = (reference.in_proj_weight.chunk(3), reference.in_proj_bias.chunk(3))
    for name, weight, bias in zip(names, *parameters, strict=True):
        getattr(module, name).load_state_dict({"weight": weight, "bias": bias})
    module.output.load_state_dict(reference.out_proj.state_dict())

    batch, hidden = batch_of(LENGTHS), randn(sum(LENGTHS), 12)
    padded = nn.utils.rnn.pad_sequence(list(hidden.split(LENGTHS)), batch_first=True)
    padding = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None]
    with torch.no_grad():
        expected, maps = reference(
            padded, padded, padded, key_padding_mask=padding, average_attn_weights=False
        )
        output, weights = attended(module, hidden[None] if three_axes else hidden, batch)
    torch.testing.assert_close(output.reshape(-1, 12), expected[~padding], **EXACT)
    for row, n in enumerate(LENGTHS):
        torch.testing.assert_close(weights[row, :, :n], maps[row, :, :n], **EXACT)


def test_one_head_mask_may_serve_all_texts() -> None:
    torch.manual_seed(0)
    module = self_attention(6, 3).double()
    batch, hidden = batch_of([4, 2]), randn(6, 6)
    factors = torch.tensor([0.0, 1.0, -2.0]).double()
    with torch.no_grad():
        one, _ = attended(module, hidden, batch, factors)
        each, _ = attended(module, hidden, batch, factors.expand(2, -1))
        plain, _ = attended(module, hidden, batch)
    assert torch.equal(one, each)
    assert (one - plain).abs().max() > 0.01


def test_gradients_stay_with_their_text_and_finite() -> None:
    torch.manual_seed(0)
    module = self_attention(6, 3).double()
    batch, hidden = batch_of([3, 1, 5]), randn(9, 6).requires_grad_()
    output, _ = attended(module, hidden, batch)
    output[:3].square().sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    assert (hidden.grad[:3].abs().sum(-1) > 0).all()
    assert hidden.grad[3:].count_nonzero() == 0
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
