from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.nn import functional

from model.numerics.pooling import (
    PoolingMode,
    PoolingModes,
    l2_normalize,
    modes_of,
    pool,
    pooled_parts,
)

MODES: tuple[PoolingMode, ...] = (
    "mean",
    "cls",
    "max",
    "last",
    "mean_sqrt_len_tokens",
    "weightedmean",
)
HIDDEN = np.array([[1.0, -2.0, 0.5], [4.0, 0.0, -3.5], [-2.0, -1.0, 6.0]], np.float32)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean", [1.0, -1.0, 1.0]),
        ("cls", [1.0, -2.0, 0.5]),
        ("max", [4.0, 0.0, 6.0]),
        ("last", [-2.0, -1.0, 6.0]),
        ("mean_sqrt_len_tokens", [3 / 3**0.5, -3 / 3**0.5, 3 / 3**0.5]),
        ("weightedmean", [3 / 6, -5 / 6, 11.5 / 6]),
    ],
)
def test_pooling_by_hand(mode: PoolingMode, expected: list[float]) -> None:
    np.testing.assert_allclose(pool(HIDDEN, mode), expected, rtol=1e-6)
    assert pool(HIDDEN[:1], mode).tolist() == HIDDEN[0].tolist()


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


@pytest.mark.parametrize(
    "mode",
    [*MODES, ("cls", "max")],
    ids=str,
)
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
