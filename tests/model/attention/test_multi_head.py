from __future__ import annotations

import math
from typing import Any

import entmax
import pytest
import torch
from torch import Tensor, nn

from model.attention.multi_head import (
    AttentionSizes,
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from model.attention.scores import scaled_dot_product_score
from model.attention.weights import NORMALIZERS, softmax

EXACT = {"atol": 1e-12, "rtol": 0.0}
B, T, S = 3, 5, 7
INPUTS = ("query", "key", "value")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def twin_of(reference: nn.MultiheadAttention) -> MultiHeadAttention:
    """Return our module with the weights of torch's."""
    e, n = reference.embed_dim, reference.num_heads
    sizes = AttentionSizes(n, e, reference.kdim, reference.vdim, e // n, e // n, e // n, e)
    with_bias = reference.in_proj_bias is not None
    ours = MultiHeadAttention(sizes, bias=with_bias).to(reference.out_proj.weight.dtype)
    if reference.in_proj_weight is not None:
        weights = reference.in_proj_weight.chunk(3)
    else:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        weights = tuple(getattr(reference, name) for name in names)
    state = {
        f"{name}.weight": w for name, w in zip(("query", "key", "value"), weights, strict=True)
    }
    state["output.weight"] = reference.out_proj.weight
    if with_bias:
        for name, b in zip(("query", "key", "value"), reference.in_proj_bias.chunk(3), strict=True):
            state[f"{name}.bias"] = b
        state["output.bias"] = reference.out_proj.bias
    ours.load_state_dict(state)
    return ours


def torch_attention(
    embed_dim: int, num_heads: int, dtype: torch.dtype, *, bias: bool = True, **dims: int
) -> nn.MultiheadAttention:
    reference = nn.MultiheadAttention(
        embed_dim, num_heads, bias=bias, batch_first=True, dtype=dtype, **dims
    ).eval()
    if bias:  # torch initialises them with zeros, which would hide differences
        nn.init.normal_(reference.in_proj_bias)
        nn.init.normal_(reference.out_proj.bias)
    return reference


LENGTHS = torch.tensor([5, 3, 1])
REAL = torch.arange(T) < LENGTHS[:, None]  # [B, T], True on real tokens
PADDING = REAL[:, None, None, :]
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()
SELF_MASKS = {
    "none": (None, None, None),
    "padding": (PADDING, ~REAL, None),
    "causal": (CAUSAL, None, ~CAUSAL),
    "both": (PADDING & CAUSAL, ~REAL, ~CAUSAL),
}
"""Our mask (True: may attend), torch's key_padding_mask and attn_mask (True: may not)."""


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("masks", SELF_MASKS.values(), ids=SELF_MASKS.keys())
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("num_heads", [1, 3, 12])
def test_self_attention_equals_torch(
    num_heads: int, bias: bool, masks: Any, dtype: torch.dtype, atol: float
) -> None:
    reference = torch_attention(12, num_heads, dtype, bias=bias)
    mask, key_padding_mask, attn_mask = masks
    x = torch.randn(B, T, 12, dtype=dtype)
    with torch.no_grad():
        expected = reference(
            x,
            x,
            x,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            average_attn_weights=False,
        )
        output, weights = twin_of(reference)(x, x, x, mask)
    torch.testing.assert_close(output, expected[0], atol=atol, rtol=0)
    torch.testing.assert_close(weights, expected[1], atol=atol, rtol=0)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("num_heads", [1, 2, 4])
@pytest.mark.parametrize(
    "dims", [{}, {"kdim": 6, "vdim": 10}, {"kdim": 9}], ids=["same", "kdim-vdim", "kdim"]
)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_cross_attention_equals_torch(
    bias: bool, dims: dict[str, int], num_heads: int, dtype: torch.dtype, atol: float
) -> None:
    reference = torch_attention(8, num_heads, dtype, bias=bias, **dims)
    query = torch.randn(B, T, 8, dtype=dtype)
    key = torch.randn(B, S, reference.kdim, dtype=dtype)
    value = torch.randn(B, S, reference.vdim, dtype=dtype)
    real = torch.arange(S) < torch.tensor([7, 4, 2])[:, None]
    with torch.no_grad():
        expected = reference(query, key, value, key_padding_mask=~real, average_attn_weights=False)
        output, weights = twin_of(reference)(query, key, value, real[:, None, None, :])
    torch.testing.assert_close(output, expected[0], atol=atol, rtol=0)
    torch.testing.assert_close(weights, expected[1], atol=atol, rtol=0)


def loop_attention(
    module: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention with softmax, one number at a time."""
    n = module.num_heads
    state = module.state_dict()

    def project(name: str, x: Tensor, head: int) -> Tensor:
        p = state[f"{name}.weight"].shape[0] // n
        rows = slice(head * p, (head + 1) * p)
        return state[f"{name}.weight"][rows] @ x + state[f"{name}.bias"][rows]

    output, all_weights = [], []
    for b in range(len(query)):
        for x in query[b]:
            heads = []
            for head in range(n):
                q = project("query", x, head)
                scores = [
                    math.fsum(a * b for a, b in zip(q, project("key", y, head), strict=True))
                    / math.sqrt(len(q))
                    for y in key[b]
                ]
                total = math.fsum(math.exp(score) for score in scores)
                weights = [math.exp(score) / total for score in scores]
                all_weights.append(weights)
                values = [project("value", y, head) for y in value[b]]
                heads.append(sum(w * v for w, v in zip(weights, values, strict=True)))
            output.append(state["output.weight"] @ torch.cat(heads) + state["output.bias"])
    shape = (len(query), query.shape[1], n, key.shape[1])
    weights = torch.tensor(all_weights, dtype=torch.float64).view(shape).transpose(1, 2)
    return torch.stack(output).view(*query.shape[:2], -1), weights


@pytest.mark.parametrize(
    "sizes",
    [
        AttentionSizes(num_heads=2, d_q=6, d_k=6, d_v=6, p_q=3, p_k=3, p_v=5, p_o=4),
        AttentionSizes(num_heads=3, d_q=4, d_k=5, d_v=7, p_q=2, p_k=2, p_v=1, p_o=9),
        AttentionSizes(num_heads=1, d_q=3, d_k=2, d_v=1, p_q=5, p_k=5, p_v=3, p_o=1),
        AttentionSizes(num_heads=5, d_q=7, d_k=3, d_v=4, p_q=1, p_k=1, p_v=2, p_o=2),
    ],
)
def test_sizes_that_torch_lacks_equal_a_plain_loop(sizes: AttentionSizes) -> None:
    module = MultiHeadAttention(sizes).double()
    query, key, value = randn(2, 3, sizes.d_q), randn(2, 4, sizes.d_k), randn(2, 4, sizes.d_v)
    with torch.no_grad():
        output, weights = module(query, key, value)
        expected, expected_weights = loop_attention(module, query, key, value)
    assert output.shape == (2, 3, sizes.p_o)
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(weights, expected_weights, **EXACT)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_that_share_keys_and_values_equal_torchs(groups: int) -> None:
    sizes = AttentionSizes(4, 12, 12, 12, 3, 3, 5, 7, num_key_value_heads=groups)
    module, x, y = MultiHeadAttention(sizes).double(), randn(B, T, 12), randn(B, S, 12)
    with torch.no_grad():
        query = split_heads(module.query(x), 4)
        key, value = (split_heads(linear(y), groups) for linear in (module.key, module.value))
        expected = nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        output, _ = module(x, y, y)
        torch.testing.assert_close(output, module.output(merge_heads(expected)), **EXACT)


def test_any_score_and_normalizer_reach_the_output() -> None:
    sizes = AttentionSizes(num_heads=2, d_q=4, d_k=4, d_v=4, p_q=3, p_k=2, p_v=2, p_o=4)
    module = MultiHeadAttention(sizes, "bilinear", "sparsemax").double()
    query, key = randn(1, 3, 4), randn(1, 5, 4)
    with torch.no_grad():
        output, weights = module(query, key, key)
        for head in range(2):
            q = module.query(query)[0, :, head * 3 : head * 3 + 3]
            k = module.key(key)[0, :, head * 2 : head * 2 + 2]
            scores = q @ module.score_parameters["weight"][head] @ k.T
            expected = entmax.sparsemax(scores + module.score_parameters["bias"][head], dim=-1)
            torch.testing.assert_close(weights[0, head], expected, **EXACT)
        values = module.value(key)[0].unflatten(-1, (2, 2))
        heads = torch.einsum("nts,snp->tnp", weights[0], values).flatten(1)
        torch.testing.assert_close(output[0], module.output(heads), **EXACT)


@pytest.mark.parametrize("score", ["scaled_dot_product", "cosine"])
def test_a_score_without_a_matrix_needs_equal_projections(score: Any) -> None:
    sizes = AttentionSizes(num_heads=1, d_q=4, d_k=4, d_v=4, p_q=3, p_k=2, p_v=2, p_o=4)
    with pytest.raises(ValueError, match=f"{score} needs p_q = p_k, not 3 and 2"):
        MultiHeadAttention(sizes, score)


@pytest.mark.parametrize("score", ["additive", "bilinear"])
def test_a_score_with_a_matrix_takes_unequal_projections(score: Any) -> None:
    sizes = AttentionSizes(num_heads=2, d_q=4, d_k=4, d_v=4, p_q=3, p_k=2, p_v=2, p_o=4)
    _, weights = MultiHeadAttention(sizes, score)(*[torch.randn(1, 3, 4)] * 3)
    assert weights.shape == (1, 2, 3, 3)


def test_a_head_mask_for_each_text_equals_each_text_alone() -> None:
    module = MultiHeadAttention(AttentionSizes.uniform(6, 3)).double()
    x = randn(3, T, 6)
    head_mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.5, 2.0], [0.0, 0.0, 0.0]]).double()
    with torch.no_grad():
        together, every = module(x, x, x, head_mask=head_mask)
        for text, scale in enumerate(head_mask):
            heads = module.value(x[text]).unflatten(-1, (3, 2)).transpose(0, 1)
            _, weights = module(*[x[[text]]] * 3)
            torch.testing.assert_close(every[text], weights[0], **EXACT)  # not scaled
            context = weights[0] @ heads * scale[:, None, None]
            expected = module.output(context.transpose(0, 1).flatten(1))
            torch.testing.assert_close(together[text], expected, **EXACT)
    bias = module.output.bias.expand(T, -1)
    torch.testing.assert_close(together[2], bias, **EXACT)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_query_that_may_look_nowhere_attends_to_nothing(name: Any) -> None:
    module = MultiHeadAttention(AttentionSizes.uniform(4, 2), normalizer=name)
    x = torch.randn(1, 3, 4)
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    output, weights = module(x, x, x, mask)
    assert weights[:, :, 1].count_nonzero() == 0
    torch.testing.assert_close(weights[:, :, [0, 2]].sum(-1), torch.ones(1, 2, 2))
    assert torch.equal(output[0, 1], module.output.bias)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_query_that_may_look_nowhere_gets_no_gradient(name: Any) -> None:
    module = MultiHeadAttention(AttentionSizes.uniform(4, 2), normalizer=name)
    query, key, value = (torch.randn(1, 3, 4, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, False]])
    module(query, key, value, mask)[0].square().sum().backward()
    for x in (query, key, value):
        assert x.grad is not None
        assert x.grad.isfinite().all()
    assert query.grad[0, 1].count_nonzero() == 0
    assert query.grad[0, [0, 2]].abs().sum() > 0
    assert key.grad[0, 2].count_nonzero() == value.grad[0, 2].count_nonzero() == 0


def module_with(query: list[list[float]], **projections: list[list[float]]) -> MultiHeadAttention:
    """Return one head without biases, with projections x @ W given by rows of W."""
    matrices = {"query": query, "key": query, "value": query, "output": query} | projections
    w = {name: torch.tensor(m, dtype=torch.float64) for name, m in matrices.items()}
    (d_q, p), (d_v, p_v), p_o = w["query"].shape, w["value"].shape, w["output"].shape[1]
    module = MultiHeadAttention(AttentionSizes(1, d_q, d_q, d_v, p, p, p_v, p_o), bias=False)
    module.load_state_dict({f"{name}.weight": m.T for name, m in w.items()})
    return module.double()


def test_a_projection_of_the_seeds() -> None:
    projected = module_with([[3, 4], [5, 6]]).query(torch.tensor([[1.0, 2.0]]).double())
    assert projected.tolist() == [[13.0, 16.0]]


@pytest.mark.parametrize(
    ("query", "key", "expected"),
    [([0.1, 0.2, 0.3], [0.2, 0.3, 0.4], 0.20), ([1, 2, 3], [4, 5, 6], 32)],
)
def test_dot_products_of_the_seeds(query: list[float], key: list[float], expected: float) -> None:
    q, k = (torch.tensor(x, dtype=torch.float64).view(1, 1, 1, 3) for x in (query, key))
    score = scaled_dot_product_score(q, k) * math.sqrt(3)
    assert score.item() == pytest.approx(expected, abs=1e-12)


def test_the_softmax_of_the_seeds() -> None:
    assert softmax(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx(
        [0.09, 0.24, 0.67], abs=0.005
    )


def test_the_worked_example_of_the_seeds() -> None:
    """Seed 000, section 4: three tokens, four dimensions, two heads, worked through by hand."""
    x = [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    w_q = w_v = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]
    w_k = [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    # a row of x picks rows: the first, the second plus the fourth, the third
    q = v = [[1, 0, 1, 0], [0, 1, 1, 2], [1, 1, 0, 0]]
    k = [[1, 1, 0, 0], [0, 1, 1, 2], [1, 0, 1, 0]]
    # head 1 has the first two features, head 2 the last two; q·k of every pair
    dots = [[[1, 0, 1], [1, 1, 0], [2, 1, 1]], [[0, 1, 1], [0, 5, 1], [0, 0, 0]]]
    # a = e^(1/√2), b = e^(5/√2), and e^(0/√2) = 1: softmax(q·k / √2), row by row
    a, b = 2.028114981647472, 34.31332991491017
    weights = [
        [
            [a / (2 * a + 1), 1 / (2 * a + 1), a / (2 * a + 1)],
            [a / (2 * a + 1), a / (2 * a + 1), 1 / (2 * a + 1)],
            [a / (a + 2), 1 / (a + 2), 1 / (a + 2)],  # e^(2/√2) : a : a = a : 1 : 1
        ],
        [
            [1 / (2 * a + 1), a / (2 * a + 1), a / (2 * a + 1)],
            [1 / (1 + a + b), b / (1 + a + b), a / (1 + a + b)],
            [1 / 3, 1 / 3, 1 / 3],
        ],
    ]
    # weights times the head's half of v: (1,0), (0,1), (1,1) and (1,0), (1,2), (0,0)
    concatenated = [
        [2 * a / (2 * a + 1), (1 + a) / (2 * a + 1), (1 + a) / (2 * a + 1), 2 * a / (2 * a + 1)],
        [(a + 1) / (2 * a + 1), (a + 1) / (2 * a + 1), (1 + b) / (1 + a + b), 2 * b / (1 + a + b)],
        [(a + 1) / (a + 2), 2 / (a + 2), 2 / 3, 2 / 3],
    ]

    module = MultiHeadAttention(AttentionSizes.uniform(4, 2), bias=False).double()
    names = ("query", "key", "value", "output")
    for name, w in zip(names, (w_q, w_k, w_v, torch.eye(4).tolist()), strict=True):
        getattr(module, name).weight.data = torch.tensor(w, dtype=torch.float64).T
    rows = torch.tensor([x], dtype=torch.float64)
    with torch.no_grad():
        assert module.query(rows)[0].tolist() == q
        assert module.key(rows)[0].tolist() == k
        assert module.value(rows)[0].tolist() == v
        scores = scaled_dot_product_score(
            split_heads(module.query(rows), 2), split_heads(module.key(rows), 2)
        )
        output, found = module(rows, rows, rows)
    pairs = ((scores * math.sqrt(2), dots), (found, weights), (output, concatenated))
    for ours, by_hand in pairs:
        expected = torch.tensor([by_hand], dtype=torch.float64)
        torch.testing.assert_close(ours, expected, **EXACT)
