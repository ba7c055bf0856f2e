"""Checks of an engine's outputs, before any of them reaches a caller."""

from __future__ import annotations

import math
from collections.abc import Sequence

from service.engines.contract import (
    DecomposeTask,
    Floats,
    LayerTask,
    MapsTask,
    Output,
    Target,
    Task,
)
from service.errors import EngineFailed

Shape = tuple[int, ...]


def check_outputs(tasks: Sequence[Task], outputs: Sequence[Output], hidden_size: int) -> None:
    """Refuse outputs that cannot be right.

    Raises:
        EngineFailed: wrong count, wrong shapes, or a value that is not finite.

    """
    if len(outputs) != len(tasks):
        raise EngineFailed(f"the engine answered {len(outputs)} of {len(tasks)} texts")
    for task, output in zip(tasks, outputs, strict=True):
        arrays, shapes = _asked(task, output, hidden_size)
        if len(arrays) != len(shapes):
            raise EngineFailed("the engine left out what was asked for")
        for array, shape in zip(arrays, shapes, strict=True):
            _check(array, shape)


def _asked(task: Task, output: Output, hidden_size: int) -> tuple[list[Floats | None], list[Shape]]:
    """What an output has of what its task asks for, and the shapes that this should have."""
    if isinstance(task, MapsTask):
        heads, keys = len(task.heads), len(task.keys)
        maps = (heads, len(task.queries), keys)
        found: list[Floats | None] = [output.maps]
        expected: list[Shape] = [maps]
        if task.values:
            found.append(output.value_products)
            expected.append((keys, heads, heads))
        if task.scores and (compared := output.head_scores):
            sizes = compared.queries.shape[-1], compared.keys.shape[-1]
            found += [compared.queries, compared.keys, compared.scores]
            expected += [*((heads, keys, size) for size in sizes), (heads, keys, keys)]
        elif task.scores:
            raise EngineFailed("the engine left out what was asked for")
        return found, expected
    if isinstance(task, DecomposeTask):
        return _asked_of_decomposition(task, output)
    if isinstance(task, LayerTask):
        return _asked_of_layer(task, output)
    arrays: list[Floats | None] = [*output.hidden]
    shapes: list[Shape] = [(len(task.input_ids), hidden_size)] * len(task.hidden_layers)
    if task.pooling:
        arrays.append(output.pooled)
        mode = task.pooling.mode
        shapes.append((hidden_size * (1 if isinstance(mode, str) else len(mode)),))
    if task.scores:
        arrays.append(output.scores)
        shapes.append(task.scores)
    if task.target:
        of_target = _asked_of_target(task.target, output, hidden_size)
        arrays += of_target[0]
        shapes += of_target[1]
    return arrays, shapes


def _asked_of_decomposition(
    task: DecomposeTask, output: Output
) -> tuple[list[Floats | None], list[Shape]]:
    """Rows as large as they were, and values of as many, if there is a next layer."""
    found, asked = output.decomposed, task.step
    if found is None or (found.values is None) != task.last:
        raise EngineFailed("the engine left out what was asked for")
    if found.values is None:
        return [found.parts], [asked.parts.shape]
    groups, size = found.values.shape[0], found.values.shape[-1]
    if asked.values is not None:
        groups, size = asked.values.shape[0], asked.values.shape[-1]
    return [found.parts, found.values], [asked.parts.shape, (groups, *asked.parts.shape[:2], size)]


def _asked_of_layer(task: LayerTask, output: Output) -> tuple[list[Floats | None], list[Shape]]:
    """Outputs of heads as large as their patch, and vectors like the entering states."""
    if (found := output.parts) is None:
        raise EngineFailed("the engine left out what was asked for")
    vectors: list[Floats | None] = [found.attended, found.residual, found.mlp, found.state]
    shapes = [task.step.patch.shape] + [task.step.states.shape] * len(vectors)
    return [found.heads, *vectors], shapes


def _asked_of_target(
    target: Target, output: Output, hidden_size: int
) -> tuple[list[Floats | None], list[Shape]]:
    found, tokens = output.target, len(target.labels)
    if found is None or len(found.hidden) != len(target.hidden_layers):
        raise EngineFailed("the engine left out what was asked for")
    arrays: list[Floats | None] = [*found.hidden, *found.cross]
    states = len(target.hidden_layers) + len(target.cross_layers)
    shapes: list[Shape] = [(tokens, hidden_size)] * states
    if target.logprobs:
        arrays.append(found.logprobs)
        shapes.append((tokens,))
    return arrays, shapes


def _check(array: Floats | None, shape: tuple[int, ...]) -> None:
    if array is None:
        raise EngineFailed("the engine left out what was asked for")
    if array.shape != shape:
        raise EngineFailed("the engine answered with a wrong shape")
    if not math.isfinite(float(array.sum())):
        raise EngineFailed("the engine answered with a value that is not finite")
