"""Maps of some heads against torch's own module; scores and normalizers against formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import entmax
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from model.attention.multi_head import AttentionSizes, MultiHeadAttention
from model.attention.scores import SCORES, additive_score, bilinear_score, cosine_score
from model.attention.weights import (
    NORMALIZERS,
    AttentionRule,
    Heads,
    attention_weights,
    softmax,
    some_heads,
    sparsemax,
    value_products,
)
from model.checkpoint import load_checkpoint
from model.config.encoder import NormalizerName, ScoreName
from tests.model.attention.test_self_attention import self_attention, twin_of
from tests.model.families.parity import SIZES, model_of, saved
from tests.model.families.test_encoder_parity import GEMMA3, MODERNBERT, QWEN3

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


def dot(a: Tensor, b: Tensor) -> float:
    return math.fsum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def scored_by_loop(
    query: Tensor, key: Tensor, formula: Callable[[int, Tensor, Tensor], float]
) -> Tensor:
    """Return formula(head, q, k) for every pair, `[B, N, T, S]`."""
    scores = torch.empty(*query.shape[:3], key.shape[2], dtype=torch.float64)
    for b, n, t, s in itertools.product(*map(range, scores.shape)):
        scores[b, n, t, s] = formula(n, query[b, n, t], key[b, n, s])
    return scores


@pytest.mark.parametrize("length", [0.0, 1e-12, 1e-9, 1e-8, 1e-7, 1e-3, 1e9])
def test_cosine_score_of_short_vectors_equals_torch(length: float) -> None:
    query, key = randn(1, 1, 2, 3), randn(1, 1, 2, 3)
    for vectors in (query, key):
        vectors[..., 0, :] *= length / vectors[..., 0, :].norm()
    expected = functional.cosine_similarity(query.unsqueeze(-2), key.unsqueeze(-3), dim=-1)
    torch.testing.assert_close(cosine_score(query, key), expected, **EXACT)


@pytest.mark.parametrize(("p_q", "p_k"), [(4, 4), (3, 5)])
def test_bilinear_score_is_its_formula(p_q: int, p_k: int) -> None:
    query, key = randn(2, 3, 4, p_q), randn(2, 3, 6, p_k)
    weight, bias = randn(3, p_q, p_k), randn(3)
    expected = scored_by_loop(
        query,
        key,
        lambda n, q, k: (
            math.fsum(float(x) * dot(row, k) for x, row in zip(q, weight[n], strict=True))
            + float(bias[n])
        ),
    )
    torch.testing.assert_close(bilinear_score(query, key, weight, bias), expected, **EXACT)


@pytest.mark.parametrize(("p_q", "p_k", "a"), [(4, 4, 4), (3, 5, 2), (2, 3, 1)])
def test_additive_score_is_its_formula(p_q: int, p_k: int, a: int) -> None:
    query, key = randn(2, 3, 4, p_q), randn(2, 3, 6, p_k)
    query_weight, key_weight, vector = randn(3, a, p_q), randn(3, a, p_k), randn(3, a)

    def formula(n: int, q: Tensor, k: Tensor) -> float:
        hidden = [
            math.tanh(dot(query_weight[n, i], q) + dot(key_weight[n, i], k)) for i in range(a)
        ]
        return math.fsum(float(v) * h for v, h in zip(vector[n], hidden, strict=True))

    scores = additive_score(query, key, query_weight, key_weight, vector)
    torch.testing.assert_close(scores, scored_by_loop(query, key, formula), **EXACT)


class LargestTensor(TorchDispatchMode):
    """Mode that records the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_additive_score_never_holds_all_hidden_features_of_all_pairs() -> None:
    b, n, t, s, a = 2, 3, 16, 17, 8
    query, key = randn(b, n, t, a), randn(b, n, s, a)
    with LargestTensor() as largest:
        additive_score(query, key, randn(n, a, a), randn(n, a, a), randn(n, a))
    assert largest.numel == b * n * t * s

    with LargestTensor() as naive:  # the size of the naive computation
        torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))
    assert naive.numel == b * n * t * s * a


def test_every_score_and_normalizer_is_named_in_the_config() -> None:
    assert set(SCORES) == set(get_args(ScoreName))
    assert set(NORMALIZERS) == set(get_args(NormalizerName))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_cosine_keeps_its_type(dtype: torch.dtype) -> None:
    query, key = torch.randn(2, 1, 2, 5, 4).to(dtype)
    assert cosine_score(query, key).dtype == dtype
    wide = (query.double(), key.double())
    close = {torch.float16: 2e-3, torch.float32: 1e-6, torch.float64: 1e-15}[dtype]
    torch.testing.assert_close(
        cosine_score(query, key).double(), cosine_score(*wide), atol=close, rtol=0
    )


def test_a_zero_vector_has_a_cosine_in_half_precision() -> None:
    """The floor of its norm, 1e-8, is 0 there, and 0 / 0 would be NaN."""
    zero, key = torch.zeros(1, 1, 2, 4).half(), torch.ones(1, 1, 3, 4).half()
    assert torch.equal(cosine_score(zero, key), torch.zeros(1, 1, 2, 3).half())


ROWS = {
    "random": [0.3, -1.2, 0.9, 0.1],
    "ties": [1.0, 1.0, 1.0, 1.0],
    "ties at the edge of the support": [1.0, 0.0, 0.0, -5.0],
    "one wins": [10.0, 1.0, 1.0, 0.0],
    "large": [1e6, 1e6 - 0.25, -1e6, 3.0],
    "very small": [1e-9, 2e-9, 0.0, -1e-9],
    "all negative": [-100.0, -100.5, -101.5, -300.0],
    "one element": [7.0],
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_sparsemax_equals_entmax_on_adversarial_rows(row: list[float]) -> None:
    scores = torch.tensor([row], dtype=torch.float64)
    torch.testing.assert_close(sparsemax(scores), entmax.sparsemax(scores, dim=-1), **EXACT)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("keys", [1, 2, 9, 65])
def test_sparsemax_equals_entmax_on_random_rows(keys: int, scale: float) -> None:
    scores = scale * randn(2, 3, 11, keys)
    weights = sparsemax(scores)
    torch.testing.assert_close(weights, entmax.sparsemax(scores, dim=-1), **EXACT)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 11).double(), **EXACT)


def test_sparsemax_has_the_gradient_of_entmax() -> None:
    ours = randn(6, 9).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    upstream = randn(6, 9)
    (sparsemax(ours) * upstream).sum().backward()
    (entmax.sparsemax(theirs, dim=-1) * upstream).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **EXACT)


REFERENCE_NORMALIZERS = {
    "softmax": lambda row: functional.softmax(row, dim=-1),
    "sparsemax": lambda row: entmax.sparsemax(row, dim=-1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("name", REFERENCE_NORMALIZERS)
def test_a_mask_leaves_the_allowed_keys_as_if_alone(
    name: Any, scale: float, dtype: torch.dtype
) -> None:
    scores = (scale * randn(20, 13)).to(dtype)
    mask = torch.rand(20, 13) < 0.5
    mask[0], mask[1], mask[2] = False, True, torch.arange(13) == 12
    scores[3, 5], mask[3, 5] = 1e30, False  # forbidden, and larger than all others
    weights = NORMALIZERS[name](scores, mask)
    assert (weights[1:][~mask[1:]] == 0).all()
    assert weights[0].isfinite().all()  # no key is allowed
    for row, allowed, found in zip(scores[1:], mask[1:], weights[1:], strict=True):
        expected = REFERENCE_NORMALIZERS[name](row[allowed])
        torch.testing.assert_close(
            found[allowed], expected, atol=1e-12 if dtype == torch.float64 else 1e-6, rtol=0
        )
        assert found.sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", REFERENCE_NORMALIZERS)
def test_gradients_stay_finite_under_a_mask(name: Any) -> None:
    scores = randn(3, 4).requires_grad_()
    mask = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    (NORMALIZERS[name](scores, mask) * randn(3, 4)).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    somewhere = mask.any(dim=-1)
    assert scores.grad[somewhere][~mask[somewhere]].count_nonzero() == 0


@pytest.mark.parametrize("keys", [2, 31, 512])
def test_sparsemax_sums_in_float32(keys: int) -> None:
    scores = torch.randn(4, 3, 7, keys, generator=torch.Generator().manual_seed(keys)).half()
    mask = torch.arange(keys) < torch.tensor([1, 2, keys // 2 + 1, keys])[:, None, None, None]
    found = sparsemax(scores, mask)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), sparsemax(scores.float(), mask), atol=3e-4, rtol=0)


def test_a_mask_is_finite_in_half_precision_and_leaves_exactly_nothing() -> None:
    scores = torch.tensor([[10000.0, -10000.0, 100.0, 0.0]]).half()
    mask = torch.tensor([[False, False, True, True]])
    assert softmax(scores, mask).tolist() == [[0, 0, 1, 0]]


MODELS: dict[str, tuple[str, dict[str, Any], tuple[str, str]]] = {
    "bert": ("Bert", SIZES, ("attention.self.value", "attention.output.dense")),
    "albert": (
        "Albert",
        SIZES | {"embedding_size": 16, "num_hidden_groups": 2},
        ("attention.value", "attention.dense"),
    ),
    "modernbert": ("ModernBert", MODERNBERT, ("attn.Wqkv", "attn.Wo")),
    "with biases": (
        "ModernBert",
        MODERNBERT | {"norm_bias": True, "attention_bias": True},
        ("attn.Wqkv", "attn.Wo"),
    ),
    "qwen3": ("Qwen3", QWEN3, ("self_attn.v_proj", "self_attn.o_proj")),
    "gemma3": ("Gemma3Text", GEMMA3, ("self_attn.v_proj", "self_attn.o_proj")),
}
"""Models with norms after or before, also in the first layer; shared layers, grouped values,
biases."""


class Layer(NamedTuple):
    """Layer of transformers for one text."""

    entering: Tensor
    maps: Tensor
    """Attention weights `[N, S, S]`."""
    added: Tensor
    """Added vectors f_h(x_k), float64 `[N, S, H]`."""


def layers_of(model: Any, ids: Tensor, names: tuple[str, str]) -> Iterator[Layer]:
    """Yield each layer; assert that its parts sum up to its attention output."""
    values: list[Tensor] = []
    outputs: list[tuple[Any, Tensor]] = []
    for name, module in model.named_modules():
        if name.endswith(names[0]):
            module.register_forward_hook(lambda _, __, found: values.append(found[0]))
        elif name.endswith(names[1]):
            module.register_forward_hook(lambda one, _, found: outputs.append((one, found[0])))
    with torch.no_grad():
        found = model(input_ids=ids[None], output_hidden_states=True, output_attentions=True)
    for layer, (dense, attended) in enumerate(outputs):
        maps = found.attentions[layer][0]
        weight = dense.weight.double()
        size = weight.shape[1] // len(maps)
        of_heads = values[layer][:, -maps_features(names, values[layer], weight) :].double()
        split = of_heads.reshape(len(ids), -1, size).repeat_interleave(
            weight.shape[1] // of_heads.shape[1], dim=1
        )
        added = torch.stack(
            [
                split[:, head] @ weight[:, head * size : (head + 1) * size].T
                for head in range(len(maps))
            ]
        )
        bias = 0 if dense.bias is None else dense.bias.double()
        whole = (maps.double() @ added).sum(dim=0) + bias
        torch.testing.assert_close(whole, attended.double(), atol=1e-4, rtol=1e-4)
        yield Layer(found.hidden_states[layer][0], maps, added)


def maps_features(names: tuple[str, str], values: Tensor, weight: Tensor) -> int:
    """Return the features of values, which may follow the queries' and keys' features."""
    return int(weight.shape[1] if names[0].endswith("Wqkv") else values.shape[1])


@pytest.mark.parametrize("name", MODELS)
def test_norms_equal_those_of_transformers_own_projections(name: str, tmp_path: Path) -> None:
    family, fields, names = MODELS[name]
    reference = model_of(family, **fields)
    encoder = load_checkpoint(saved(reference, tmp_path))
    heads = encoder.config.num_attention_heads
    ids = torch.randint(3, 97, (19,), generator=torch.Generator().manual_seed(2))
    every = layers_of(reference, ids, names)
    for parameters, layer in zip(encoder.value_parameters(), every, strict=True):
        for chosen in (range(heads), [heads - 1, 0]):
            with torch.no_grad():
                some = some_heads(parameters, chosen, heads)
                products = value_products(some, encoder.rule, layer.entering)
            added = layer.added[list(chosen)]
            wanted = torch.einsum("gkd,hkd->kgh", added, added)
            atol = 1e-6 * wanted.abs().max().item()
            torch.testing.assert_close(products.double(), wanted, atol=atol, rtol=1e-5)
            norms = layer.maps[list(chosen)] * products.diagonal(dim1=1, dim2=2).T.sqrt()[:, None]
            vectors = layer.maps[list(chosen)].double()[..., None] * added[:, None]
            torch.testing.assert_close(norms.double(), vectors.norm(dim=-1), atol=0, rtol=1e-4)
