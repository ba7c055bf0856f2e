"""Splitting and pooling in host memory, over known hidden states; counting of calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from model.families.registry import parse_config
from model.numerics.batch import Batch, pack
from model.numerics.pooling import TextPooling
from model.runtimes.contract import Floats
from model.runtimes.host import LONE_TOKENS, Calls, HostRuntime
from tests.model.checkpoints import TINY

LENGTHS = [4, 1, 6]
STATES = np.random.default_rng(0).standard_normal((3, sum(LENGTHS), 12), np.float32)
"""Hidden states `[L + 1, T, H]`."""
FIRST, SECOND, THIRD = slice(0, 4), slice(4, 5), slice(5, 11)


class KnownStates(HostRuntime):
    """Runtime that returns `STATES`, and records its requests."""

    config = parse_config(TINY | {"model_type": "bert"})

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int], Floats | None]] = []

    def hidden_states(
        self, batch: Batch, layers: Sequence[int], head_mask: Floats | None = None
    ) -> list[Floats]:
        self.asked.append((len(batch.input_ids), list(layers), head_mask))
        return [STATES[layer] for layer in layers]


@pytest.fixture
def runtime() -> KnownStates:
    return KnownStates()


def batch_of(*lengths: int) -> Batch:
    return pack([([1] * n, [0] * n) for n in lengths])


def test_hidden_states_are_cut_in_the_order_asked(runtime: KnownStates) -> None:
    hidden = [(2, 0), (0, 2), (2, 2), (1, 0), (2, 0)]
    found, vectors = runtime.encode(batch_of(*LENGTHS), hidden, [])
    expected = [STATES[0, THIRD], STATES[2, FIRST], STATES[2, THIRD]]
    expected += [STATES[0, SECOND], STATES[0, THIRD]]
    assert vectors == []
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
        assert np.shares_memory(ours, STATES)
    assert runtime.asked == [(sum(LENGTHS), [0, 2], None)]


def test_each_text_is_pooled_over_its_own_tokens(runtime: KnownStates) -> None:
    poolings = [
        TextPooling(2, 1, "mean", first_token=2),
        TextPooling(0, 2, "max"),
        TextPooling(1, 0, "last"),
        TextPooling(2, 2, "cls", first_token=5),
        TextPooling(2, 1, "weightedmean", first_token=4),
        TextPooling(0, 1, ("last", "max")),
    ]
    expected = [
        STATES[1, 7:11].mean(axis=0),
        STATES[2, 0:4].max(axis=0),
        STATES[0, 4],
        STATES[2, 10],
        (5 * STATES[1, 9] + 6 * STATES[1, 10]) / 11,
        np.concatenate([STATES[1, 3], STATES[1, FIRST].max(axis=0)]),
    ]
    hidden, found = runtime.encode(batch_of(*LENGTHS), [], poolings)
    assert hidden == []
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, strict=True)
        assert not np.shares_memory(ours, STATES)


@pytest.mark.parametrize("features", [1, 5, 12])
def test_leading_features_become_a_unit_vector(runtime: KnownStates, features: int) -> None:
    asked = TextPooling(0, 2, "mean", unit_features=features)
    _, (vector,) = runtime.encode(batch_of(*LENGTHS), [], [asked])
    mean = STATES[2, FIRST].mean(axis=0)[:features].astype(np.float64)
    np.testing.assert_allclose(vector[:features], mean / np.linalg.norm(mean), rtol=1e-5)
    assert vector.shape == (12,)


def test_a_head_mask_reaches_the_encoder(runtime: KnownStates) -> None:
    mask = np.zeros((3, 2, 3), np.float32)
    runtime.encode(batch_of(*LENGTHS), [(0, 1)], [TextPooling(0, 2, "cls")], mask)
    ((_, layers, given),) = runtime.asked
    assert layers == [1, 2]
    assert given is mask


def test_a_warm_up_is_one_short_batch(runtime: KnownStates) -> None:
    runtime.warm_up(4096, 512)
    assert runtime.asked == [(1, [2], None)]


def test_a_short_batch_is_alone_until_another_call_begins() -> None:
    calls = Calls()
    with calls.call(batch_of(LONE_TOKENS)) as first:
        with calls.call(batch_of(1)) as second:
            pass
        with calls.call(batch_of(1)) as third:
            pass
    assert (first, second, third) == (True, False, False)
    with pytest.raises(RuntimeError), calls.call(batch_of(1, 1)) as failed:
        raise RuntimeError
    with calls.call(batch_of(LONE_TOKENS, 1)) as long:
        pass
    with calls.call(batch_of(1)) as last:
        pass
    assert (failed, long, last) == (True, False, True)
