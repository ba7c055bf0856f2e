"""The cost of a decomposition is measured once, at the first request for one."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest

from service.engines.contract import DecomposeTask, Output, Task
from service.engines.fake import FakeEngine
from service.inference.explanation import towers as module
from service.inference.explanation.towers import ASSUMED, part_cost
from service.scheduler.submission import ANYBODY
from tests.service.harness import CONFIG, batching
from tests.service.scheduler.clock import FakeClock

pytestmark = pytest.mark.anyio


async def test_it_is_the_time_of_a_part_beside_that_of_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand tokens a second; 5 ms a row of 33 parts in one of two layers."""
    clock, steps = FakeClock(monkeypatch), []

    class Clocked(FakeEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            steps.extend(task for task in tasks if isinstance(task, DecomposeTask))
            clock.now += 7.0 if len(steps) == 1 else 0.005 * module.MEASURED_TOKENS
            return super().run(tasks)

    engine = Clocked(CONFIG, concurrency=2)
    engine.measured = [(10, 0.01), (1000, 1.0)]
    inference: Any = types.SimpleNamespace(part_costs={}, config=CONFIG)
    with batching(engine, max_batch_tokens=1000) as (scheduler, _):
        found = await part_cost(inference, scheduler, ANYBODY)
        assert found == pytest.approx(0.005 / 33 * 2 / 0.001)
        assert len(steps) == 2
        assert await part_cost(inference, scheduler, ANYBODY) == found
        assert len(steps) == 2


async def test_an_engine_that_is_not_measured_has_an_assumed_cost() -> None:
    inference: Any = types.SimpleNamespace(part_costs={}, config=CONFIG)
    with batching(FakeEngine(CONFIG)) as (scheduler, recorder):
        assert await part_cost(inference, scheduler, ANYBODY) == ASSUMED
        assert not recorder.finished
