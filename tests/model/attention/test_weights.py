"""Maps of some heads, against torch's own module and against the whole forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model.attention.multi_head import AttentionSizes, MultiHeadAttention
from model.attention.scores import SCORES
from model.attention.weights import NORMALIZERS, AttentionRule, Heads, attention_weights, some_heads
from tests.model.attention.test_self_attention import self_attention, twin_of

EXACT = {"atol": 1e-12, "rtol": 0.0}
B, T, S, N, P, H = 2, 4, 7, 3, 2, 6
CHOSEN: list[list[int]] = [[0], [2], [2, 0], [0, 1, 2], [1, 1]]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chosen", CHOSEN, ids=str)
def test_some_heads_equal_torchs(chosen: list[int], bias: bool) -> None:
    reference = nn.MultiheadAttention(H, N, bias=bias, batch_first=True).double()
    if bias:
        nn.init.normal_(reference.in_proj_bias)
    queries, keys = randn(B, T, H), randn(B, S, H)
    mask = torch.rand(B, S) < 0.7
    mask[:, 0] = True
    _, expected = reference(queries, keys, keys, key_padding_mask=~mask, average_attn_weights=False)
    parameters: dict[str, Tensor] = {}
    for role, weight in zip(("query", "key"), reference.in_proj_weight.chunk(3), strict=False):
        parameters[f"{role}_weight"] = weight.unflatten(0, (N, P))[chosen]
    if bias:
        for role, vector in zip(("query", "key"), reference.in_proj_bias.chunk(3), strict=False):
            parameters[f"{role}_bias"] = vector.unflatten(0, (N, P))[chosen]
    heads = Heads.from_parameters(parameters, AttentionRule())
    found = attention_weights(heads, queries, keys, mask[:, None, None, :])
    assert found.shape == (B, len(chosen), T, S)
    torch.testing.assert_close(found, expected[:, chosen], **EXACT)


@pytest.mark.parametrize("chosen", CHOSEN, ids=str)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
def test_some_heads_equal_those_of_the_forward_pass(
    score: Any, normalizer: Any, chosen: list[int]
) -> None:
    fields = {"attention_score": score, "attention_normalizer": normalizer}
    module = self_attention(H, N, **fields).double()
    queries, keys = randn(B, T, H), randn(B, S, H)
    _, expected = twin_of(module)(queries, keys, keys)
    parameters = some_heads(module.head_parameters({}), chosen, N)
    found = attention_weights(Heads.from_parameters(parameters, module.rule), queries, keys)
    torch.testing.assert_close(found, expected[:, chosen], **EXACT)


@pytest.mark.parametrize("score", SCORES)
def test_parameters_of_a_head_have_heads_first(score: Any) -> None:
    parameters = self_attention(H, N, attention_score=score).head_parameters({})
    assert {len(tensor) for tensor in parameters.values()} == {N}
    assert parameters["query_weight"].shape == parameters["key_weight"].shape == (N, P, H)


def test_parameters_that_heads_share_are_each_ones() -> None:
    every = {"own": torch.arange(4.0), "of_two": torch.tensor([[1.0], [2.0]]), "alike": randn(1)}
    found = some_heads(every, [3, 0, 2], 4)
    assert found["own"].tolist() == [3, 0, 2]
    assert found["of_two"].tolist() == [[2], [1], [2]]
    assert torch.equal(found["alike"], every["alike"].expand(3))
    whole = some_heads(every, range(4), 4)
    assert whole["of_two"].tolist() == [[1], [1], [2], [2]]
    assert whole["own"] is every["own"]  # megabytes of weights are not copied for each request


def test_scores_of_half_precision_are_normalised_in_float32() -> None:
    heads = MultiHeadAttention(AttentionSizes.uniform(H, N)).half().heads
    states = torch.randn(B, T, H).half()
    assert attention_weights(heads, states, states).dtype == torch.float16
    wide = attention_weights(heads, states, states, in_float32=True)
    assert wide.dtype == torch.float32
    assert (wide.sum(-1) - 1).abs().max() < 1e-6
