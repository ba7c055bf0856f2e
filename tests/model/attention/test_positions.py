from __future__ import annotations

from typing import Literal

import pytest
import torch
from transformers import MPNetConfig, Qwen3Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from model.attention.positions import (
    alibi_table,
    bucket_table,
    distances,
    rotary_frequencies,
    rotate,
)
from model.config.encoder import LogBuckets


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
