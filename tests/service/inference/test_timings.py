"""Times of a request's steps, summed by hand."""

from __future__ import annotations

import pytest

from service.inference.text_warnings import Warnings
from service.inference.timings import Timings
from service.scheduler.submission import TaskResult


def test_of_tasks_side_by_side_the_longest_counts() -> None:
    timings = Timings(tokens=9, began=100.0, tokenization_seconds=0.5)
    timings.add([TaskResult(None, 0.1, 2.0), TaskResult(None, 0.4, 1.0)])
    assert (timings.queue_seconds, timings.inference_seconds) == (0.4, 2.0)
    timings.add([TaskResult(None, 0.25, 0.125)])  # one step after the other
    assert timings.queue_seconds == pytest.approx(0.65)
    assert timings.inference_seconds == pytest.approx(2.125)
    assert (timings.tokens, timings.began, timings.tokenization_seconds) == (9, 100.0, 0.5)


def test_parts_that_went_one_after_the_other_add_up() -> None:
    both = Timings(3, 100.0, 0.5, 0.25, 2.0) + Timings(4, 101.0, 0.25, 0.5, 1.0)
    assert both == Timings(7, 100.0, 0.75, 0.75, 3.0)


def test_so_do_their_warnings() -> None:
    one, other = Warnings(truncated=1), Warnings(1, 2, 3)
    both = Timings(3, 0.0, 0.0, warnings=one) + Timings(4, 0.0, 0.0, warnings=other)
    assert both.warnings == Warnings(2, 2, 3)
