from __future__ import annotations

import pytest
import torch
from torch import Tensor

from model.attention.long_texts import attend_in_chunks, attend_in_windows, query_chunks
from model.attention.weights import AttentionRule, Heads
from tests.model.attention.test_self_attention import config_of

N, P = 3, 4


def of_lengths(lengths: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys and values `[B, N, S, p]`, and the mask `[B, 1, 1, S]`."""
    longest = max(lengths)
    torch.manual_seed(sum(lengths))
    tensors = [2 * torch.randn(len(lengths), N, longest, P).double() for _ in range(3)]
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return *tensors, mask[:, None, None]


def plain(window: int | None = None, *, causal: bool = False) -> Heads:
    """Return heads whose projections are not used."""
    parameters = {} if window is None else {"window": torch.tensor(float(window))}
    return Heads(N, lambda x: x, lambda x: x, AttentionRule(causal=causal), parameters)


def assert_same_of_each_text(found: Tensor, expected: Tensor, lengths: list[int]) -> None:
    assert found.shape == expected.shape
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :, :length], expected[row, :, :length])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[1], [7, 2], [40, 33, 1], [64]], ids=str)
@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_chunks_equal_torchs_attention_of_all(
    chunks: int, lengths: list[int], causal: bool
) -> None:
    query, key, value, mask = of_lengths(lengths)
    allowed = mask.expand(-1, N, max(lengths), -1)
    allowed = allowed.tril() if causal else allowed
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, allowed)
    found = attend_in_chunks(plain(causal=causal), query, key, value, mask, chunks)
    assert_same_of_each_text(found, expected, lengths)


@pytest.mark.parametrize("queries", [0, 1, 11, 90])
def test_there_may_be_other_queries_than_keys(queries: int) -> None:
    query = torch.randn(2, N, queries, P).double()
    _, key, value, mask = of_lengths([40, 33])
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
    for chunks in (1, 3, 8):
        found = attend_in_chunks(plain(), query, key, value, mask, chunks)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[1], [7, 2], [40, 33, 1], [150, 96]], ids=str)
@pytest.mark.parametrize("window", [1, 5, 64, 200])
def test_windows_equal_torchs_attention_under_a_band(
    window: int, lengths: list[int], causal: bool
) -> None:
    query, key, value, mask = of_lengths(lengths)
    band = torch.ones(max(lengths), max(lengths), dtype=torch.bool).tril(window).triu(-window)
    allowed = mask & (band.tril() if causal else band)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, allowed)
    found = attend_in_windows(plain(window, causal=causal), query, key, value, mask, window)
    torch.testing.assert_close(found, expected)  # also of padding that attends to nothing


@pytest.mark.parametrize(("longest", "expected"), [(512, 1), (1024, 1), (1025, 2), (8192, 8)])
def test_only_long_texts_are_cut(longest: int, expected: int) -> None:
    assert query_chunks(config_of(6, 3, max_position_embeddings=longest)) == expected
