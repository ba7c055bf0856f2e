from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor
from transformers import MPNetConfig, Qwen3Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from model.attention.long_texts import attend_in_chunks, attend_in_windows, query_chunks
from model.attention.positions import (
    alibi_table,
    bucket_table,
    distances,
    rotary_frequencies,
    rotate,
)
from model.attention.weights import AttentionRule, Heads
from model.config.encoder import LogBuckets
from tests.model.attention.test_self_attention import config_of


@pytest.mark.parametrize("base", [10000.0, 160000.0, 7.0])
def test_rotated_queries_equal_transformers(base: float) -> None:
    parameters = {"rope_type": "default", "rope_theta": base}
    config = Qwen3Config(head_dim=8, rope_parameters=parameters)
    x = torch.randn(2, 3, 300, 8)
    cos, sin = Qwen3RotaryEmbedding(config)(x, torch.arange(300)[None])
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin)
    frequencies = rotary_frequencies(base, 8)
    torch.testing.assert_close(rotate(x, frequencies), expected)
    torch.testing.assert_close(rotate(x, frequencies.expand(3, -1)), expected)


def test_a_score_depends_on_the_distance_alone() -> None:
    x = torch.arange(1.0, 9.0).double().expand(1, 1, 20, 8)
    turned = rotate(x, rotary_frequencies(10000.0, 8))
    scores = (turned @ turned.transpose(-2, -1))[0, 0]
    for offset in range(-19, 20):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[0].expand_as(diagonal))
    assert (scores[0] - scores[0, 0]).abs()[1:].min() > 1e-3


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 16])
def test_slopes_of_linear_biases_equal_those_of_bloom(heads: int) -> None:
    table = alibi_table(heads, 4)
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0]  # slope · position
    torch.testing.assert_close(table[:, 4], -bloom[:, 1])
    for distance in range(4):
        torch.testing.assert_close(table[:, 3 + distance], -distance * bloom[:, 1])
        torch.testing.assert_close(table[:, 3 - distance], -distance * bloom[:, 1])


def test_distances_are_positions_of_keys_less_those_of_queries() -> None:
    assert distances(2, 3, torch.device("cpu")).tolist() == [[0, 1, 2], [-1, 0, 1]]


@pytest.mark.parametrize("longest", [1, 40, 700])
def test_buckets_of_t5_equal_transformers(longest: int) -> None:
    found = bucket_table(LogBuckets(kind="t5", count=32, max_distance=128), longest)
    assert MPNetConfig().relative_attention_num_buckets == 32
    relative = torch.arange(1 - longest, longest)
    assert torch.equal(found, MPNetEncoder.relative_position_bucket(relative))


@pytest.mark.parametrize("longest", [1, 40, 700])
@pytest.mark.parametrize("kind", ["t5", "t5_causal"])
@pytest.mark.parametrize(("count", "farthest"), [(32, 128), (7, 20), (4, 300)])
def test_buckets_of_both_halves_of_t5_equal_transformers(
    kind: Literal["t5", "t5_causal"], longest: int, count: int, farthest: int
) -> None:
    found = bucket_table(LogBuckets(kind=kind, count=count, max_distance=farthest), longest)
    relative = torch.arange(1 - longest, longest)
    expected = T5Attention._relative_position_bucket(relative, kind == "t5", count, farthest)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("bucketed", "farthest"),
    [(256, 512), (8, 40), (3, 9), (-1, 30), (0, 30), (30, 30), (40, 30), (90, 30), (2, 1)],
)
def test_buckets_of_deberta_equal_transformers(bucketed: int, farthest: int) -> None:
    """Even with as many buckets as distances or more, where the buckets still widen."""
    kind, count = ("deberta", bucketed) if bucketed > 0 else ("exact", farthest)
    longest = 2 * max(count, farthest)
    buckets = LogBuckets.model_validate({"kind": kind, "count": count, "max_distance": farthest})
    found = bucket_table(buckets, longest)
    states = torch.empty(1, longest, 1)
    relative = build_relative_position(states, states, bucketed, farthest)[0]
    expected = (relative + count).clamp(0, 2 * count - 1)
    assert torch.equal(found[distances(longest, longest, found.device) + longest - 1], expected)


def test_tables_are_real_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        assert rotary_frequencies(10.0, 4).device.type == "cpu"
        for kind in ("t5", "t5_causal", "deberta", "exact"):
            buckets = LogBuckets.model_validate({"kind": kind, "count": 8, "max_distance": 20})
            assert bucket_table(buckets, 30).device.type == "cpu"


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
