"""Batches that are measured before the first request, and the cost of padding."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from service.engines.contract import BatchCost, MapsTask, Output, Task
from service.engines.fake import FakeEngine
from service.engines.measuring import (
    ROUNDS,
    maps_of,
    measured_batches,
    measured_cost,
    texts_of,
)
from tests.service.harness import CONFIG
from tests.service.scheduler.requests import FakeClock

TEXTS = texts_of(CONFIG)


class Clocked(FakeEngine):
    """Engine with 50 µs a token, and ten times as much for the first batch of a size."""

    def __init__(self, clock: FakeClock, concurrency: int = 1, seconds: float = 0.00005) -> None:
        super().__init__(CONFIG, concurrency=concurrency)
        self.clock, self.seconds = clock, seconds
        self.batches: list[list[int]] = []

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        lengths = [task.tokens for task in tasks]
        first = lengths not in self.batches
        self.batches.append(lengths)
        self.clock.now += self.seconds * sum(lengths) * (10 if first else 1)
        return super().run(tasks)


def test_batches_grow_to_two_texts_and_the_faster_of_a_size_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of a size takes ten times as long."""
    engine = Clocked(FakeClock(monkeypatch))
    found = measured_batches(engine, TEXTS, 2048, 512)
    assert engine.batches == [[16]] * ROUNDS + [[32] * 4] * ROUNDS + [[256, 256]] * ROUNDS
    assert found == [(size, pytest.approx(0.00005 * size)) for size in (16, 128, 512)]


def test_no_batch_is_larger_than_any_and_no_text_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Clocked(FakeClock(monkeypatch))
    assert [tokens for tokens, _ in measured_batches(engine, TEXTS, 100, 20)] == [16, 100]
    assert engine.batches[-1] == [20] * 5


def test_a_batch_that_would_take_long_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Clocked(FakeClock(monkeypatch), seconds=0.0002)
    found = measured_batches(engine, TEXTS, 512, 512)
    assert engine.batches == [[16]] * ROUNDS + [[32] * 4] * ROUNDS
    assert found == [(size, pytest.approx(0.0002 * size)) for size in (16, 128, 512)]


def test_as_many_calls_go_side_by_side_as_the_engine_takes() -> None:
    together = threading.Barrier(3, timeout=20)

    class Meeting(FakeEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            together.wait()
            return super().run(tasks)

    assert len(measured_batches(Meeting(CONFIG, concurrency=3), TEXTS, 512, 512)) == 3


def test_maps_are_those_of_all_heads() -> None:
    first, second = maps_of(CONFIG)([16, 9])
    heads = tuple(range(CONFIG.num_attention_heads))
    assert first == MapsTask(first.queries, first.queries, 0, heads)
    assert (first.tokens, second.tokens) == (16, 9)


class Padded(Clocked):
    """Engine with 10 ms a batch, 0.1 ms a token, and 30 µs a position of padding."""

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        lengths = [task.tokens for task in tasks]
        padding = max(lengths) * len(lengths) - sum(lengths)
        self.batches.append(lengths)
        self.clock.now += 0.01 + 0.0001 * sum(lengths) + 0.00003 * padding
        return FakeEngine.run(self, tasks)


class Interrupted(Padded):
    def run(self, tasks: Sequence[Task]) -> list[Output]:
        self.clock.now += 9.0 if len(self.batches) == 1 else 0.0
        return super().run(tasks)


@pytest.mark.parametrize("kind", [Padded, Interrupted])
def test_the_cost_of_padding_is_of_equal_tokens_in_the_fastest_round(
    kind: type[Padded], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = kind(FakeClock(monkeypatch))
    cost = measured_cost(engine, TEXTS, [(16, 0.0116), (128, 0.0228)], 512)
    assert engine.batches == [[32] + [16] * 6] * ROUNDS
    assert cost.fixed == 0.0116
    assert cost.token == pytest.approx(0.0001 * (128 - 16) / 128)
    assert cost.padding == pytest.approx(0.00003)


@pytest.mark.parametrize(
    ("measured", "longest"),
    [([(16, 0.01), (32, 0.02)], 512), ([(16, 0.1), (128, 0.9)], 512), ([(1, 0.1)], 1)],
)
def test_the_cost_of_batches_that_are_slow_or_not_allowed_is_not_measured(
    measured: list[tuple[int, float]], longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Padded(FakeClock(monkeypatch))
    assert measured_cost(engine, TEXTS, measured, longest) == BatchCost()
    assert engine.batches == []


def test_short_texts_only_are_measured_where_the_model_takes_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Padded(FakeClock(monkeypatch))
    cost = measured_cost(engine, TEXTS, [(16, 0.0116), (126, 0.0226)], 21)
    assert engine.batches == [[21] + [10] * 10] * ROUNDS
    assert cost.padding == pytest.approx(0.00003, rel=0.02)
