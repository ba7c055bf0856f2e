"""Tasks of one caller: results in order, one failure for all, and the deadline."""

from __future__ import annotations

import itertools
import math
import time

import pytest

from service.errors import EngineFailed
from service.scheduler.submission import Caller, Submission, TaskResult
from tests.service.harness import text

pytestmark = pytest.mark.anyio


async def test_results_come_in_the_order_of_the_tasks() -> None:
    submission = Submission([text(n) for n in (3, 1, 2)], itertools.count(5), Caller("somebody"))
    assert [entry.number for entry in submission.entries] == [5, 6, 7]
    for index in (2, 0, 1):
        assert not submission.future.done()
        submission.answer(index, TaskResult(f"output {index}", 0.0, 0.0))
    found = await submission.future
    assert [result.value for result in found] == ["output 0", "output 1", "output 2"]


async def test_one_failure_is_that_of_all_and_the_first() -> None:
    submission = Submission([text(3), text(4)], itertools.count(), Caller())
    submission.answer(0, TaskResult("output", 0.0, 0.0))
    submission.fail(EngineFailed("the first"))
    submission.fail(EngineFailed("the second"))
    with pytest.raises(EngineFailed, match="the first"):
        await submission.future


async def test_it_is_due_when_it_should_have_begun_and_then_when_it_should_have_ended() -> None:
    now = time.monotonic()
    caller = Caller(finish_by=now + 50)
    submission = Submission([text(3)], itertools.count(), caller, wait_seconds=5)
    assert submission.due == pytest.approx(now + 5, abs=1)
    submission.begun = True
    assert submission.due == now + 50
    patient = Submission([text(3)], itertools.count(), Caller(), wait_seconds=math.inf)
    assert patient.due == math.inf
    late = Submission([text(3)], itertools.count(), caller, wait_seconds=100)
    assert late.due == now + 50
