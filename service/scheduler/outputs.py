"""Checks of an engine's outputs, before any of them reaches a caller."""

from __future__ import annotations

import math
from collections.abc import Sequence

from service.engines.contract import Floats, MapsTask, Output, Task
from service.errors import EngineFailed


def check_outputs(tasks: Sequence[Task], outputs: Sequence[Output], hidden_size: int) -> None:
    """Refuse outputs that cannot be right.

    Raises:
        EngineFailed: wrong count, wrong shapes, or a value that is not finite.

    """
    if len(outputs) != len(tasks):
        raise EngineFailed(f"the engine answered {len(outputs)} of {len(tasks)} texts")
    for task, output in zip(tasks, outputs, strict=True):
        arrays: list[Floats | None]
        shapes: list[tuple[int, ...]]
        if isinstance(task, MapsTask):
            arrays = [output.maps]
            shapes = [(len(task.heads), len(task.queries), len(task.keys))]
        else:
            arrays = [*output.hidden]
            shapes = [(task.tokens, hidden_size)] * len(task.hidden_layers)
            if task.pooling:
                arrays.append(output.pooled)
                mode = task.pooling.mode
                shapes.append((hidden_size * (1 if isinstance(mode, str) else len(mode)),))
            if task.scores:
                arrays.append(output.scores)
                shapes.append(task.scores)
        if len(arrays) != len(shapes):
            raise EngineFailed("the engine left out what was asked for")
        for array, shape in zip(arrays, shapes, strict=True):
            _check(array, shape)


def _check(array: Floats | None, shape: tuple[int, ...]) -> None:
    if array is None:
        raise EngineFailed("the engine left out what was asked for")
    if array.shape != shape:
        raise EngineFailed("the engine answered with a wrong shape")
    if not math.isfinite(float(array.sum())):
        raise EngineFailed("the engine answered with a value that is not finite")
