"""Fake engine: its results, and the time it takes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.engines.contract import MapsTask, Output, Pooling, Target, TextTask
from service.engines.fake import FakeEngine
from service.scheduler.outputs import check_outputs
from tests.service.harness import CONFIG, assert_same, decomposition, layer_maps, text


def test_the_fake_answers_by_ids_alone() -> None:
    engine, other = FakeEngine(CONFIG), FakeEngine(CONFIG)
    everything: dict[str, Any] = {
        "hidden_layers": (0, 2),
        "pooling": Pooling(2, "mean"),
        "scores": (5,),
    }
    one, two = text(9, 1, **everything), text(9, 2, **everything)
    answers = engine.run([one, two])
    for task, answer in zip([one, two], answers, strict=True):
        assert_same(answer, other.run([task])[0])
    segments = TextTask(one.input_ids, 1 - one.segment_ids, **everything)
    ablated = TextTask(one.input_ids, one.segment_ids, **everything, ablated=((0, 0),))
    for different in (two, segments, ablated):
        with pytest.raises(AssertionError):
            assert_same(engine.expected(different), engine.expected(one))


def test_the_fakes_maps_are_of_the_hidden_states_the_layer_and_the_head() -> None:
    engine, other = FakeEngine(CONFIG), FakeEngine(CONFIG)
    wanted = engine.expected(layer_maps(9, 1, layer=0, heads=(0, 1))).maps
    assert wanted is not None
    np.testing.assert_allclose(wanted.sum(axis=-1), 1, atol=1e-5)
    (turned,) = other.run([layer_maps(9, 1, layer=0, heads=(1, 0))])
    np.testing.assert_array_equal(turned.maps, wanted[::-1], strict=True)
    for different in (layer_maps(9, 2), layer_maps(9, 1, layer=1), layer_maps(9, 1, heads=(1, 0))):
        with pytest.raises(AssertionError):
            assert_same(engine.expected(different), Output(maps=wanted))


def test_the_fakes_vectors_are_as_long_as_their_poolings() -> None:
    (answer,) = FakeEngine(CONFIG).run([text(4, pooling=Pooling(2, ("mean", "weightedmean")))])
    check_outputs([text(4, pooling=Pooling(2, ("mean", "max")))], [answer], CONFIG.hidden_size)


def test_the_fake_takes_as_long_as_it_was_told() -> None:
    engine = FakeEngine(CONFIG, batch_seconds=0.02, token_seconds=0.001)
    started = time.perf_counter()
    engine.run([text(10), text(20)])
    assert time.perf_counter() - started >= 0.05


def test_the_fakes_maps_are_of_queries_and_of_keys() -> None:
    engine, one, two = FakeEngine(CONFIG), layer_maps(4, 1), layer_maps(6, 2)
    cross = MapsTask(one.queries, two.keys, 0, (0, 1))
    maps = engine.expected(cross).maps
    assert maps is not None
    assert maps.shape == (2, 4, 6)
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    other_keys = MapsTask(one.queries, two.keys + 1, 0, (0, 1))
    with pytest.raises(AssertionError):
        assert_same(engine.expected(other_keys), engine.expected(cross))


def test_the_fakes_targets_are_of_text_and_labels_alone() -> None:
    engine, other = FakeEngine(CONFIG), FakeEngine(CONFIG)
    target = Target(np.arange(5), (0, 1), (0,), logprobs=True)
    one, two = text(9, 1, target=target), text(9, 2, target=target)
    assert one.tokens == 14
    answers = engine.run([one, two, text(9, 1)])
    check_outputs([one, two, text(9, 1)], answers, CONFIG.hidden_size)

    assert_same(answers[0], other.run([one])[0])
    for different in (
        two,
        text(9, 1, target=replace(target, labels=np.arange(5) + 1)),
        text(9, 1, target=replace(target, ablated=((0, 0),))),
        text(9, 1, target=replace(target, cross_ablated=((0, 0),))),
    ):
        with pytest.raises(AssertionError):
            assert_same(other.run([different])[0], answers[0])


def test_the_fakes_decoder_maps_look_at_nothing_later() -> None:
    engine, task = FakeEngine(CONFIG), layer_maps(6, 1)
    maps = engine.expected(replace(task, kind="decoder")).maps
    assert maps is not None
    assert not np.triu(maps, 1).any()
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    with pytest.raises(AssertionError):
        assert_same(engine.expected(replace(task, kind="cross")), engine.expected(task))


def test_the_fakes_shares_sum_to_their_state() -> None:
    engine = FakeEngine(CONFIG)
    for layer in (0, 1):
        task = decomposition(length=5, rows=3, layer=layer)
        (answer,) = engine.run([task])
        check_outputs([task], [answer], CONFIG.hidden_size)
        assert answer.decomposed is not None
        parts = answer.decomposed.parts
        np.testing.assert_allclose(parts[:, 1:].sum(axis=1), parts[:, 0], rtol=1e-4, atol=1e-5)
        assert np.abs(parts - task.step.parts).mean() > 0.1
