"""Outputs of an engine that cannot be right."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.artifact.decomposition import DecomposedRows
from model.runtimes.contract import HeadScores
from service.engines.contract import (
    MapsTask,
    Output,
    Pooling,
    Target,
    TargetOutput,
    Task,
)
from service.errors import EngineFailed
from service.scheduler.call import ANYBODY
from service.scheduler.outputs import check_outputs
from tests.service.harness import AnsweringEngine, batching, decomposition, text

pytestmark = pytest.mark.anyio

H = 8
"""Hidden size."""


def of(*shape: int, last: float = 0.0) -> NDArray[np.float32]:
    """Return zeros, with `last` as the last value."""
    array = np.zeros(shape, np.float32)
    array.flat[-1] = last
    return array


def states(*tokens: int) -> list[Any]:
    return [of(count, H) for count in tokens]


TEXT = text(7, hidden_layers=(0, 2), pooling=Pooling(2, "mean"))
MODES = text(3, pooling=Pooling(1, ("cls", "max")))
SCORED = text(4, scores=(4, 3))
AIMED = text(4, target=Target(np.zeros(3, np.int64), (0, 1), (0,), logprobs=True))
CROSS = MapsTask(of(4, H), of(6, H), 0, (2, 0, 1))
PRODUCTS = dataclasses.replace(CROSS, values=True)
COMPARED = MapsTask(of(6, H), of(6, H), 0, (2, 0, 1), scores=True)
ROWS, LAST = decomposition(length=4, rows=2), decomposition(length=4, rows=2, layer=1)
MAPS, VECTORS = of(3, 6, 6), of(3, 6, 4)
RIGHT: list[tuple[Task, Output]] = [
    (TEXT, Output(states(7, 7), of(H))),
    (MODES, Output(pooled=of(2 * H))),
    (SCORED, Output(scores=of(4, 3))),
    (AIMED, Output(target=TargetOutput(states(3, 3), states(3), of(3)))),
    (CROSS, Output(maps=of(3, 4, 6))),
    (PRODUCTS, Output(maps=of(3, 4, 6), value_products=of(6, 3, 3))),
    (COMPARED, Output(maps=MAPS, head_scores=HeadScores(VECTORS, VECTORS, MAPS))),
    (ROWS, Output(decomposed=DecomposedRows(of(2, 5, H), of(2, 2, 5, 4)))),
    (LAST, Output(decomposed=DecomposedRows(of(2, 5, H), None))),
]
LEFT_OUT: list[tuple[Task, Output]] = [
    (TEXT, Output(states(7), of(H))),
    (TEXT, Output(states(7, 7, 7), of(H))),
    (TEXT, Output(states(7, 7))),
    (SCORED, Output()),
    (AIMED, Output()),
    (AIMED, Output(target=TargetOutput(states(3), states(3, 3), of(3)))),
    (AIMED, Output(target=TargetOutput(states(3, 3), states(), of(3)))),
    (AIMED, Output(target=TargetOutput(states(3, 3), states(3)))),
    (CROSS, Output()),
    (PRODUCTS, Output(maps=of(3, 4, 6))),
    (COMPARED, Output(maps=MAPS)),
    (ROWS, Output()),
    (ROWS, Output(decomposed=DecomposedRows(of(2, 5, H), None))),
    (LAST, Output(decomposed=DecomposedRows(of(2, 5, H), of(2, 2, 5, 4)))),
]
SHAPES: list[tuple[Task, Output]] = [
    *[(TEXT, Output([of(7, H), of(*wrong)], of(H))) for wrong in ((6, H), (7,), (7, H, 1), (7, 7))],
    *[(TEXT, Output(states(7, 7), of(*wrong))) for wrong in ((7, H), (), (H + 1,))],
    (MODES, Output(pooled=of(H))),
    *[(SCORED, Output(scores=of(*wrong))) for wrong in ((3,), (3, 4), (4, 4))],
    (AIMED, Output(target=TargetOutput(states(3, 4), states(3), of(3)))),
    (AIMED, Output(target=TargetOutput(states(3, 3), states(4), of(3)))),
    (AIMED, Output(target=TargetOutput(states(3, 3), states(3), of(4)))),
    *[(CROSS, Output(maps=of(*wrong))) for wrong in ((3, 6, 4), (3, 4, 4), (2, 4, 6), (4, 6))],
    (PRODUCTS, Output(maps=of(3, 4, 6), value_products=of(4, 3, 3))),
    (COMPARED, Output(maps=MAPS, head_scores=HeadScores(VECTORS, VECTORS[:, :4], MAPS))),
    (COMPARED, Output(maps=MAPS, head_scores=HeadScores(VECTORS[:2], VECTORS, MAPS))),
    (COMPARED, Output(maps=MAPS, head_scores=HeadScores(VECTORS, VECTORS, MAPS[:, :4]))),
    (LAST, Output(decomposed=DecomposedRows(of(3, 5, H), None))),
    (ROWS, Output(decomposed=DecomposedRows(of(2, 5, H), of(2, 3, 5, 4)))),
    (ROWS, Output(decomposed=DecomposedRows(of(2, 5, H), of(1, 2, 5, 4)))),
]
VALUES: list[tuple[Task, Output]] = [
    *[(TEXT, Output([of(7, H), of(7, H, last=bad)], of(H))) for bad in (np.nan, -np.inf)],
    *[(TEXT, Output(states(7, 7), of(H, last=bad))) for bad in (np.nan, np.inf)],
    (SCORED, Output(scores=of(4, 3, last=np.nan))),
    (AIMED, Output(target=TargetOutput(states(3, 3), states(3), of(3, last=-np.inf)))),
    *[(CROSS, Output(maps=of(3, 4, 6, last=bad))) for bad in (np.nan, np.inf, -np.inf)],
    (COMPARED, Output(maps=MAPS, head_scores=HeadScores(VECTORS, VECTORS + np.inf, MAPS))),
    (LAST, Output(decomposed=DecomposedRows(of(2, 5, H, last=np.nan), None))),
]


def test_what_was_asked_for_passes() -> None:
    tasks, outputs = zip(*RIGHT, strict=True)
    check_outputs(tasks, outputs, H)


REASONS = {
    "the engine left out what was asked for": LEFT_OUT,
    "the engine answered with a wrong shape": SHAPES,
    "the engine answered with a value that is not finite": VALUES,
}
WRONG = [(task, output, reason) for reason, cases in REASONS.items() for task, output in cases]


@pytest.mark.parametrize(("task", "output", "reason"), WRONG)
def test_what_cannot_be_right_is_refused(task: Task, output: Output, reason: str) -> None:
    with pytest.raises(EngineFailed, match=reason):
        check_outputs([TEXT, task], [RIGHT[0][1], output], H)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_task_has_one_output(count: int) -> None:
    with pytest.raises(EngineFailed, match=f"the engine answered {count} of 2 texts"):
        check_outputs([TEXT] * 2, [RIGHT[0][1]] * count, H)


@pytest.mark.parametrize("answer", [7, [None] * 2, [Output(), Output()], []])
async def test_a_wrong_answer_reaches_nobody(answer: Any) -> None:
    engine, reduced = AnsweringEngine(lambda _: answer), list[Output]()
    with batching(engine) as (batcher, recorder):
        with pytest.raises(EngineFailed):
            await batcher.submit("encode", [text(7)] * 2, ANYBODY, [reduced.append] * 2)
        assert (recorder.failed, recorder.finished, reduced) == (["encode"], [], [])
        assert batcher.last_success < 0
        engine.answer = lambda _: None
        assert len(await batcher.submit("encode", [text(7)])) == 1
