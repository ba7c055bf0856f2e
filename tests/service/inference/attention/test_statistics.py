"""Statistics and norms of heads against loops from the definitions, scipy and plain sorting."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cosine
from scipy.stats import entropy

from service.inference.attention.statistics import (
    CROSS_STATISTICS,
    FEW,
    STATISTICS,
    head_norms,
    norm_shares,
    rollout_step,
    shift,
    statistics,
    top_k,
)
from tests.service import plain


@st.composite
def random_maps(draw, max_tokens=12):
    """Return maps `[layers, heads, S, S]` whose rows sum to 1, with zeros and ties."""
    size = draw(st.integers(1, max_tokens))
    leading = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    if draw(st.booleans()):
        maps = rng.integers(0, 3, (*leading, size, size)) + 1e-30
    else:
        maps = rng.dirichlet(np.full(size, draw(st.sampled_from([0.01, 1.0]))), (*leading, size))
    maps /= maps.sum(axis=-1, keepdims=True)
    return maps.astype(np.float32)


def plain_statistics(rows: list[list[float]], separators: list[int]) -> dict[str, float]:
    """Compute statistics from the definitions, one weight after another."""
    size = len(rows)
    found = dict.fromkeys(STATISTICS, 0.0)
    for q, row in enumerate(rows):
        for k, weight in enumerate(row):
            if weight > 0:
                found["entropy"] -= weight * math.log(weight) / size
            found["distance"] += weight * abs(q - k) / size
            found["sep"] += weight * (k in separators) / size
        found["confidence"] += max(row) / size
        found["cls"] += row[0] / size
        found["self"] += row[q] / size
        if q >= 1:
            found["previous"] += row[q - 1] / (size - 1)
        if q + 1 < size:
            found["next"] += row[q + 1] / (size - 1)
    return found


def assert_plain_statistics(maps: np.ndarray, separators: list[int]) -> None:
    found = statistics(maps, separators)
    assert tuple(found) == STATISTICS
    assert all(array.shape == maps.shape[:-2] for array in found.values())
    assert all(array.dtype == np.float32 for array in found.values())
    for place in np.ndindex(maps.shape[:-2]):
        for name, value in plain_statistics(maps[place].tolist(), separators).items():
            assert found[name][place] == pytest.approx(value, rel=1e-6, abs=1e-6), name


@given(maps=random_maps(), data=st.data())
@settings(deadline=None)
def test_statistics_of_random_maps(maps, data):
    places = data.draw(st.lists(st.integers(0, maps.shape[-1] - 1), unique=True))
    assert_plain_statistics(maps, places)
    assert_plain_statistics(maps[::2, ::2], places)  # not contiguous


@given(seed=st.integers(0, 2**32 - 1), queries=st.integers(1, 9), keys=st.integers(1, 9))
def test_statistics_of_cross_attention(seed, queries, keys):
    maps = np.random.default_rng(seed).dirichlet(np.full(keys, 0.1), (2, 3, queries))
    maps, separators = maps.astype(np.float32), [keys - 1, 0][: min(keys, 2)]
    found = statistics(maps, separators, CROSS_STATISTICS)
    assert tuple(found) == CROSS_STATISTICS
    np.testing.assert_allclose(found["entropy"], entropy(maps, axis=-1).mean(axis=-1), atol=1e-5)
    wanted = plain.cross_statistics(maps, separators)
    for name, values in found.items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_statistics_of_one_long_map():
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.full(512, 0.1), (1, 2, 512)).astype(np.float32)
    assert_plain_statistics(maps, [511])


def test_a_single_token_has_neither_neighbour():
    found = statistics(np.ones((2, 3, 1, 1), np.float32), [0])
    expected = dict.fromkeys(STATISTICS, 0.0) | dict.fromkeys(
        ("confidence", "cls", "sep", "self"), 1
    )
    for name, array in found.items():
        np.testing.assert_array_equal(array, np.full((2, 3), expected[name]))
        assert not np.signbit(array).any()


def test_statistics_take_little_memory():
    maps = np.full((12, 512, 512), 1 / 512, np.float32)
    tracemalloc.start()
    try:
        statistics(maps, [511])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < maps.nbytes


def assert_plain_top_k(maps: np.ndarray, k: int) -> None:
    indices, values = top_k(maps, k)
    assert indices.dtype == np.int32
    assert values.dtype == np.float32
    assert indices.shape == values.shape == (*maps.shape[:-1], min(k, maps.shape[-1]))
    for place in np.ndindex(maps.shape[:-1]):
        row = maps[place].tolist()
        expected = sorted(range(len(row)), key=lambda key: (-row[key], key))[:k]
        assert indices[place].tolist() == expected
        assert values[place].tolist() == [row[key] for key in expected]


@given(maps=random_maps(max_tokens=3 * FEW), k=st.sampled_from([1, 2, 5, FEW, FEW + 1, 1000]))
@settings(deadline=None, max_examples=40)
def test_top_k_of_random_maps(maps, k):
    assert_plain_top_k(maps[:1, :2], k)


@pytest.mark.parametrize("k", [5, FEW + 1, 150, 10**9])
def test_top_k_of_long_maps_that_stay_as_they_are(k):
    maps = np.random.default_rng(0).dirichlet(np.full(200, 0.1), (3, 4, 200)).astype(np.float32)
    before = maps.copy()
    assert_plain_top_k(maps[::2, ::3], k)  # not contiguous
    np.testing.assert_array_equal(maps, before)


@pytest.mark.parametrize("k", [3, FEW + 3])
def test_equal_weights_are_in_the_order_of_their_tokens(k):
    indices, _ = top_k(np.full((2, 64, 64), 1 / 64, np.float32), k)
    np.testing.assert_array_equal(indices, np.broadcast_to(np.arange(k), (2, 64, k)))


def plain_rollout(layers: np.ndarray) -> np.ndarray:
    """Compute the rollout token by token from the definition, `[L, N, S, S]` → `[S, S]`."""
    size = layers.shape[-1]
    total = np.eye(size)
    for heads in layers.astype(np.float64):
        step = np.zeros((size, size))
        for q in range(size):
            row = np.array([sum(head[q, k] for head in heads) / len(heads) for k in range(size)])
            row[q] += 1
            step[q] = row / row.sum()
        total = np.array([sum(step[q, k] * total[k] for k in range(size)) for q in range(size)])
    return total


def rollout(layers: np.ndarray) -> np.ndarray:
    found = None
    for maps in layers:
        found = rollout_step(found, maps.mean(axis=0))
    assert found is not None
    return found


@given(maps=random_maps())
@settings(deadline=None)
def test_rollout_of_random_maps(maps):
    before = maps.copy()
    found = rollout(maps)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, plain_rollout(maps), atol=1e-6)
    np.testing.assert_array_equal(maps, before)


vectors = st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4)


@given(a=vectors, b=vectors)
def test_shift_is_the_cosine_distance(a, b):
    x, y = np.array([a, b], np.float32)
    found = float(shift(x, y))
    if x.any() and y.any():
        assert found == pytest.approx(cosine(x.astype(float), y.astype(float)), abs=1e-9)
    else:
        assert found == (1.0 if x.any() or y.any() else 0.0)
    assert 0 <= found <= 2


def test_shift_takes_rows():
    a = np.array([[1, 0], [1, 0], [0, 0], [0, 0]], np.float32)
    b = np.array([[0, 1], [-3, 0], [0, 0], [1, 1]], np.float32)
    np.testing.assert_allclose(shift(a, b), [1, 2, 0, 1])


N, S, H = 5, 9, 11
NUMBERS = np.random.default_rng(0)
MAPS = NUMBERS.dirichlet(np.full(S, 0.3), (N, S)).astype(np.float32)
VALUES = NUMBERS.normal(size=(S, N, H)).astype(np.float32)
PRODUCTS = VALUES @ VALUES.transpose(0, 2, 1)


def test_the_norms_are_those_of_the_vectors_that_each_head_adds() -> None:
    added = MAPS.astype(np.float64)[..., None] * VALUES.transpose(1, 0, 2)[:, None]
    wanted = np.linalg.norm(added, axis=-1)
    np.testing.assert_allclose(head_norms(MAPS, PRODUCTS), wanted, rtol=1e-5)


@pytest.mark.parametrize("block", [1, N * S * 4, 1 << 18])
def test_the_shares_are_those_of_the_sum_over_heads(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.attention.statistics.BLOCK_WEIGHTS", block)
    added = MAPS.astype(np.float64)[..., None] * VALUES.transpose(1, 0, 2)[:, None]
    wanted = np.linalg.norm(added.sum(axis=0), axis=-1)
    wanted /= wanted.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(norm_shares(MAPS, PRODUCTS), wanted, atol=1e-6)


def test_heads_that_cancel_each_other_out_give_nothing() -> None:
    maps = np.repeat(MAPS[:1], 2, axis=0)
    products = np.tile(np.float32([[3, -3], [-3, 3]]), (S, 1, 1))
    assert not norm_shares(maps, products).any()
