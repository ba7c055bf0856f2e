"""Packed tensors, norms and low-rank parts."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from model.low_rank import LowRank, with_chosen
from model.norms import RMSNorm, normalize, rms_norm
from model.numerics.batch import pack
from model.packing import PackedBatch
from tests.model.attention.test_self_attention import batch_of, randn
from tests.model.numerics.test_batch import CONFIG


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


def test_tokens_that_no_token_attends_to_are_in_the_grid() -> None:
    texts = [([4, 5, 6], [0] * 3), ([7, 8], [0] * 2)]
    batch, plain = PackedBatch.of(pack(texts, [(1, 2), (1,)])), PackedBatch.of(pack(texts))
    tokens = randn(5, 2)
    assert torch.equal(batch.pad(tokens)[0], plain.pad(tokens)[0])
    assert torch.equal(batch.pad(tokens)[1, :2], plain.pad(tokens)[1, :2])
    assert torch.equal(batch.pack(batch.pad(tokens)), tokens)
    assert batch.grid_ids()[0].tolist() == [4, 5, 6]
    assert batch.mask[:, 0, 0].tolist() == [[True, False, False], [True, False, False]]


def test_tensors_share_the_batchs_memory() -> None:
    batch = pack([([1, 2], [0, 0])])
    packed = PackedBatch.of(batch)
    *tensors, pixels, adapter_features = packed
    assert pixels is adapter_features is None
    assert all(
        tensor.data_ptr() == array.ctypes.data
        for tensor, array in zip(tensors, batch.inputs, strict=True)
    )
    assert packed._fields[:-1] == tuple(vars(batch))


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


def chosen(types: list[int], dtype: torch.dtype) -> torch.Tensor:
    batch = PackedBatch.of(pack([([1] * len(types), types)]))
    features = with_chosen(batch, CONFIG, dtype).low_rank
    assert features is not None
    return features


def test_a_token_type_chooses_the_features_of_its_adapter() -> None:
    features = chosen([0, 2, 3], torch.float16)
    assert features.dtype == torch.float16
    assert features.tolist() == [[0] * 6, [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    batch = PackedBatch.of(pack([([1], [0])]))
    assert with_chosen(batch, CONFIG.model_copy(update={"adapters": None}), torch.half) is batch


def test_each_token_gets_the_product_of_its_adapter() -> None:
    """Compare with B_k A_k x by the matrices of one adapter alone; a token without one gets 0."""
    torch.manual_seed(0)
    assert CONFIG.adapters
    adapters = LowRank(CONFIG.adapters, 4, 5)
    x, types = torch.randn(4, 4), [3, 0, 1, 3]
    with torch.no_grad():
        added = adapters(x, chosen(types, x.dtype))
        down, up = adapters.matrices
        for row, adapter in enumerate(types):
            a, b = down.reshape(3, 2, 4), up.reshape(5, 3, 2).transpose(0, 1)
            matrix = b[adapter - 1] @ a[adapter - 1] if adapter else torch.zeros(5, 4)
            torch.testing.assert_close(added[row], matrix @ x[row])
            if adapter:
                torch.testing.assert_close(adapters.matrix(adapter), matrix)
