"""Packed tensors to the grid and back, and attention over them: each text as if it were alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from model.artifact.batch import pack
from model.attention import AttentionSizes, MultiHeadAttention
from model.config import NormalizerName, ScoreName
from model.normalizers import NORMALIZERS
from model.packing import PackedBatch
from model.scores import SCORES

EXACT = {"atol": 1e-12, "rtol": 0.0}
LENGTHS = [5, 1, 9, 3]


def batch_of(lengths: list[int]) -> PackedBatch:
    rng = np.random.default_rng(lengths)
    return PackedBatch.of(pack([(rng.integers(0, 9, n), rng.integers(0, 2, n)) for n in lengths]))


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


# ── there and back ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("leading", [(), (1,)], ids=["[T, p]", "[1, T, p]"])
@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7), p=st.integers(1, 4))
@example(lengths=[1], p=1)
@example(lengths=[9], p=3)
def test_pad_and_pack_equal_a_loop(leading: tuple[int, ...], lengths: list[int], p: int) -> None:
    batch, tokens = batch_of(lengths), randn(sum(lengths), p)
    grid = batch.pad(tokens.reshape(*leading, *tokens.shape))
    assert grid.shape == (len(lengths), max(lengths), p)
    expected = iter(tokens.tolist())
    for row, n in zip(grid, lengths, strict=True):
        assert row[:n].tolist() == list(itertools.islice(expected, n))
        assert row.isfinite().all()
    assert torch.equal(batch.pack(grid), tokens)
    assert batch.mask.shape == (len(lengths), 1, 1, max(lengths))
    assert batch.mask[:, 0, 0].tolist() == [[i < n for i in range(max(lengths))] for n in lengths]


def test_tensors_share_the_batchs_memory() -> None:
    batch = pack([([1, 2], [0, 0])])
    packed = PackedBatch.of(batch)
    assert all(
        tensor.data_ptr() == array.ctypes.data
        for tensor, array in zip(packed, batch.inputs, strict=True)
    )
    assert packed._fields == tuple(vars(batch))


# ── attention ──────────────────────────────────────────────────────────────────────────────


def assert_packed_equals_alone(
    module: MultiHeadAttention, lengths: list[int], *, three_axes: bool
) -> None:
    batch, d = batch_of(lengths), module.query.in_features
    hidden = randn(sum(lengths), d, seed=1)
    head_mask = randn(len(lengths), module.num_heads, seed=2)
    with torch.no_grad():
        output, weights = module.packed(hidden[None] if three_axes else hidden, batch, head_mask)
        assert output.dim() == (3 if three_axes else 2)
        texts = output.reshape(sum(lengths), -1).split(lengths)
        for row, x in enumerate(hidden.split(lengths)):
            expected, alone = module(x[None], x[None], x[None], head_mask=head_mask[[row]])
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
    sizes = AttentionSizes(num_heads=3, d_q=6, d_k=6, d_v=6, p_q=2, p_k=2, p_v=4, p_o=5)
    module = MultiHeadAttention(sizes, score, normalizer).double()
    assert_packed_equals_alone(module, LENGTHS, three_axes=three_axes)


@pytest.mark.parametrize("three_axes", [False, True], ids=["[T, d]", "[1, T, d]"])
@pytest.mark.parametrize("lengths", [[1], [6], [1, 1, 1], [4, 4], [1, 17, 2]], ids=str)
def test_any_lengths_equal_each_text_alone(lengths: list[int], three_axes: bool) -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(AttentionSizes.uniform(8, 2)).double()
    assert_packed_equals_alone(module, lengths, three_axes=three_axes)


@pytest.mark.parametrize("three_axes", [False, True], ids=["[T, d]", "[1, T, d]"])
def test_packed_attention_equals_torchs_own_padded(three_axes: bool) -> None:
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64).eval()
    nn.init.normal_(reference.in_proj_bias)
    nn.init.normal_(reference.out_proj.bias)
    module = MultiHeadAttention(AttentionSizes.uniform(12, 3)).double()
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
        output, weights = module.packed(hidden[None] if three_axes else hidden, batch)
    torch.testing.assert_close(output.reshape(-1, 12), expected[~padding], **EXACT)
    for row, n in enumerate(LENGTHS):
        torch.testing.assert_close(weights[row, :, :n], maps[row, :, :n], **EXACT)


def test_one_head_mask_may_serve_all_texts() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(AttentionSizes.uniform(6, 3)).double()
    batch, hidden = batch_of([4, 2]), randn(6, 6)
    factors = torch.tensor([0.0, 1.0, -2.0]).double()
    with torch.no_grad():
        one, _ = module.packed(hidden, batch, factors)
        each, _ = module.packed(hidden, batch, factors.expand(2, -1))
        plain, _ = module.packed(hidden, batch)
    assert torch.equal(one, each)
    assert (one - plain).abs().max() > 0.01


def test_gradients_stay_with_their_text_and_finite() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(AttentionSizes.uniform(6, 3)).double()
    batch, hidden = batch_of([3, 1, 5]), randn(9, 6).requires_grad_()
    output, _ = module.packed(hidden, batch)
    output[:3].square().sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    assert (hidden.grad[:3].abs().sum(-1) > 0).all()
    assert hidden.grad[3:].count_nonzero() == 0
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
