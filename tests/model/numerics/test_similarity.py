"""Similarity, MaxSim and vector modules against scipy, torch and sentence-transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sentence_transformers.base.modules import Dense as TheirDense
from sentence_transformers.util import maxsim
from torch import nn

from model.artifact.mapped import mapped_tensors
from model.config.encoder import ActivationName
from model.numerics import late_interaction
from model.numerics.late_interaction import LateInteraction, QueryExpansion, max_sim
from model.numerics.similarity import NEIGHBOURS, TAIL, similarity, spearman
from model.numerics.task_head import TaskConfig, Transform, word_logits
from model.numerics.vector_modules import (
    DENSE_ACTIVATIONS,
    Dense,
    DenseActivation,
    LayerNorm,
    Normalize,
    VectorModule,
    size_after,
)
from model.tasks.head import TaskHead

EXACT = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
BENT = EXACT + np.random.default_rng(1).normal(scale=0.3, size=EXACT.shape).astype(np.float32)


def test_figures_are_scipys() -> None:
    found = similarity(EXACT, BENT)
    one, other = (1 - cdist(each, each, "cosine") for each in (EXACT, BENT))
    pairs = np.triu_indices(len(EXACT), 1)
    assert found.rank_correlation == pytest.approx(
        spearmanr(one[pairs], other[pairs]).statistic, abs=6e-5
    )
    cosines = 1 - np.diag(cdist(EXACT, BENT, "cosine"))
    assert found.mean_cosine == pytest.approx(cosines.mean(), abs=6e-5)
    assert found.low_cosine == pytest.approx(np.quantile(cosines, TAIL), abs=6e-5)
    assert found.least_cosine == pytest.approx(cosines.min(), abs=6e-5)
    recall = 0.0
    # the text itself is its own nearest neighbour, and first in its row
    for row in range(len(EXACT)):
        mine, theirs = (set(np.argsort(-m[row])[1 : NEIGHBOURS + 1]) for m in (one, other))
        recall += len(mine & theirs) / NEIGHBOURS
    assert found.neighbour_recall == pytest.approx(recall / len(EXACT), abs=6e-5)
    assert 0.3 < found.neighbour_recall < 0.99


def test_scale_and_rotation_change_no_ranking() -> None:
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(8, 8)))[0]
    found = similarity(EXACT, 3 * EXACT @ rotation)
    assert (found.rank_correlation, found.neighbour_recall) == (1, 1)
    assert found.mean_cosine < 0.9


def test_texts_that_are_all_alike_have_no_order() -> None:
    alike = np.eye(4, dtype=np.float32)
    assert similarity(alike, 2 * alike).rank_correlation == 1
    assert similarity(alike, EXACT[:4, :4]).rank_correlation == 0


def test_what_is_not_finite_is_like_nothing() -> None:
    broken = EXACT.copy()
    broken[3, 2] = np.nan
    found = similarity(EXACT, broken)
    assert set(found.model_dump(exclude={"texts"}).values()) == {0}


NUMBERS = st.lists(st.integers(-3, 3), min_size=2, max_size=40)


@given(NUMBERS, st.randoms(use_true_random=False))
def test_spearman_is_scipys(values: list[int], chance: object) -> None:
    others = [*values]
    chance.shuffle(others)  # type: ignore[attr-defined]
    if len(set(values)) > 1:
        a, b = np.array(values, np.float64), np.array(others, np.float64)
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_spearman_of_equal_numbers_is_nan_without_a_warning() -> None:
    equal, rising = np.ones(3), np.arange(3.0)
    assert np.isnan(
        [spearman(equal, rising), spearman(rising, equal), spearman(equal, equal)]
    ).all()
    assert np.isnan(spearman(rising[:1], rising[:1]))
    assert (spearman(rising, rising**3), spearman(rising, -rising)) == (1, -1)


MODULES = (Dense(in_features=4, out_features=3), Normalize())


@pytest.mark.parametrize("block", [2**20, 7, 1])
def test_max_sim(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """The score does not depend on the block size; all products may be negative."""
    monkeypatch.setattr(late_interaction, "BLOCK", block)
    generator = np.random.default_rng(0)
    query = np.abs(generator.normal(size=(5, 3))).astype(np.float32)
    for rows in (generator.normal(size=(9, 3)), -np.abs(generator.normal(size=(4, 3)))):
        document = rows.astype(np.float32)
        expected = float(maxsim([query], [document])[0, 0])
        assert max_sim(query, document) == pytest.approx(expected, abs=1e-5)
    assert expected < 0
    assert max_sim(query[:0], document) == 0


def test_tokens_without_vectors() -> None:
    vectors, ids = np.eye(4, dtype=np.float32), np.array([7, 8, 9, 8])
    late = LateInteraction(modules=MODULES, skipped_ids=(8, 5))
    assert late.kept(vectors, ids, "document").tolist() == vectors[[0, 2]].tolist()
    assert late.kept(vectors, ids, "query").tolist() == vectors.tolist()
    both = late.model_copy(update={"skipped_in": ("query", "document")})
    assert len(both.kept(vectors, ids, "query")) == 2
    assert late.vector_size(4) == 3
    assert late.vector_size(5) is None


def test_what_fills_a_query_up() -> None:
    late = LateInteraction(modules=MODULES, expansion=QueryExpansion(token_id=4, length=5))
    assert late.filled_up(np.array([2, 9, 3])).tolist() == [2, 9, 3, 4, 4]
    assert late.filled_up(np.arange(6)).tolist() == [*range(6)]
    assert (late.missing(3), late.missing(6), late.unseen) == (2, 0, True)
    attended = QueryExpansion(token_id=4, length=5, attended=True)
    assert not late.model_copy(update={"expansion": attended}).unseen
    alone = LateInteraction(modules=MODULES)
    assert alone.filled_up(np.arange(2)).tolist() == [0, 1]
    assert (alone.missing(1), alone.unseen) == (0, False)


@pytest.mark.parametrize("activation", [None, *get_args(ActivationName)])
def test_they_are_the_heads(activation: ActivationName | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    transform = activation and Transform(size=5, activation=activation, norm_eps=1e-5)
    task = TaskConfig(
        kind="sparse",
        outputs=11,
        pooling="max",
        transform=transform or None,
        output_bias=activation is not None,
    )
    head = TaskHead(task, 7)
    save_file(head.state_dict(), tmp_path / "task.safetensors")
    rows, words = torch.randn(4, 7), np.array([9, 0, 3])
    with torch.inference_mode():
        expected = head(rows)[:, words].numpy()
    found = word_logits(mapped_tensors(tmp_path / "task.safetensors"), task, rows.numpy(), words)
    np.testing.assert_allclose(found, expected, atol=2e-6)


X = np.concatenate(
    [np.linspace(-90, 90, 33), np.linspace(-3, 3, 31), np.zeros(1)], dtype=np.float32
).reshape(13, 5)


def tensors_of(module: nn.Module) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("activation", DENSE_ACTIVATIONS)
def test_activations_are_torchs(activation: DenseActivation) -> None:
    dense = Dense(in_features=5, out_features=5, bias=False, activation=activation)
    found = dense(X, {"linear.weight": np.eye(5, dtype=np.float32)})
    expected = getattr(nn, activation)()(torch.from_numpy(X)).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize(
    ("n", "bias", "residual"), [(3, True, False), (3, False, True), (5, True, True)]
)
def test_dense_is_the_librarys(n: int, bias: bool, residual: bool) -> None:
    torch.manual_seed(0)
    theirs = TheirDense(5, n, bias=bias, use_residual=residual)
    ours = Dense(in_features=5, out_features=n, bias=bias, residual=residual)
    tensors = tensors_of(theirs)
    assert {name: tensor.shape for name, tensor in tensors.items()} == ours.shapes()
    x = X / 30
    with torch.inference_mode():
        expected = theirs({"sentence_embedding": torch.from_numpy(x)})["sentence_embedding"]
    np.testing.assert_allclose(ours(x, tensors), expected.numpy(), atol=1e-6)


def test_layer_norm_is_torchs() -> None:
    norm = nn.LayerNorm(5)
    torch.manual_seed(0)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
        expected = norm(torch.from_numpy(X)).numpy()
    tensors = {f"norm.{name}": tensor for name, tensor in tensors_of(norm).items()}
    ours = LayerNorm(dimension=5)
    assert {name: tensor.shape for name, tensor in tensors.items()} == ours.shapes()
    np.testing.assert_allclose(ours(X, tensors), expected, atol=1e-5)


def test_shares_of_a_layer_norm_keep_the_deviation_of_their_sum() -> None:
    """Each share is the torch norm's own linear map of it, with the deviation as a constant."""
    torch.manual_seed(0)
    norm, shares = nn.LayerNorm(5).double(), torch.randn(3, 5, dtype=torch.float64)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    deviation = torch.sqrt(shares.sum(dim=0).var(unbiased=False) + norm.eps)
    with torch.no_grad():
        centred = shares - shares.mean(dim=1, keepdim=True)
        expected = centred / deviation * norm.weight + norm.bias / 3
        total = norm(shares.sum(dim=0))
    tensors = {f"norm.{name}": tensor for name, tensor in tensors_of(norm).items()}
    found = LayerNorm(dimension=5).shares(shares.numpy(), tensors)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=0), total.numpy(), atol=1e-6)


def test_normalize_is_torchs() -> None:
    x = np.concatenate([X, np.zeros((1, 5), np.float32), np.full((1, 5), 1e-15, np.float32)])
    expected = nn.functional.normalize(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(Normalize()(x, {}), expected, atol=1e-6)


def test_sizes_follow_the_modules() -> None:
    wide, narrow = Dense(in_features=4, out_features=9), Dense(in_features=9, out_features=2)
    chains: list[tuple[list[VectorModule], int | None]] = [
        ([], 4),
        ([Normalize()], 4),
        ([wide], 9),
        ([wide, Normalize(), LayerNorm(dimension=9), narrow], 2),
        ([narrow], None),
        ([wide, LayerNorm(dimension=4)], None),
    ]
    assert [size_after(modules, 4) for modules, _ in chains] == [size for _, size in chains]
