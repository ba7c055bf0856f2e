"""Attention over packed texts equals each text alone, and torch's own over padded texts."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.t5.modeling_t5 import T5Attention

from model.attention.long_texts import attend_in_chunks, attend_in_windows, query_chunks
from model.attention.multi_head import AttentionSizes, MultiHeadAttention
from model.attention.positions import (
    alibi_table,
    bucket_table,
    distances,
    rotary_frequencies,
)
from model.attention.scores import SCORES
from model.attention.self_attention import SelfAttention, attention_rule
from model.attention.weights import NORMALIZERS, AttentionRule, Heads
from model.config.encoder import EncoderConfig, LogBuckets, NormalizerName, ScoreName
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
    for lengths in (LENGTHS, [1], [6], [1, 1, 1], [4, 4], [1, 17, 2]):
        assert_packed_equals_alone(module, lengths, three_axes=three_axes)


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


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_gradients_stay_with_their_text_and_finite(normalizer: NormalizerName) -> None:
    """Positions without a token repeat other tokens' values, which must not affect outputs."""
    torch.manual_seed(0)
    module = self_attention(6, 3, attention_normalizer=normalizer).double()
    batch, hidden = batch_of([3, 1, 5]), randn(9, 6).requires_grad_()
    output, _ = attended(module, hidden, batch)
    output[:3].square().sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    assert (hidden.grad[:3].abs().sum(-1) > 0).all()
    assert hidden.grad[3:].count_nonzero() == 0
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 16])
def test_slopes_of_linear_biases_equal_those_of_bloom(heads: int) -> None:
    table = alibi_table(heads, 4)
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0]  # slope · position
    torch.testing.assert_close(table[:, 4], -bloom[:, 1])
    for distance in range(4):
        torch.testing.assert_close(table[:, 3 + distance], -distance * bloom[:, 1])
        torch.testing.assert_close(table[:, 3 - distance], -distance * bloom[:, 1])


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
