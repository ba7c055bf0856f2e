"""Packed tensors to the grid and back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.numerics.batch import pack
from model.packing import PackedBatch

LENGTHS = [5, 1, 9, 3]


def batch_of(lengths: list[int]) -> PackedBatch:
    rng = np.random.default_rng(lengths)
    return PackedBatch.of(pack([(rng.integers(0, 9, n), rng.integers(0, 2, n)) for n in lengths]))


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


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
