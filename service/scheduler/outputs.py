"""Checks of an engine's outputs, before any of them reaches a caller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from model.runtimes.contract import HiddenState
from service.engines.contract import (
    DecomposeTask,
    Floats,
    MapsTask,
    Output,
    Target,
    Task,
)
from service.errors import EngineFailed

Shape = tuple[int, ...]
Field = TypeVar("Field")


def check_outputs(tasks: Sequence[Task], outputs: Sequence[Output], hidden_size: int) -> None:
    """Raise if outputs have a wrong number, a wrong shape or a value that is not finite.

    Raises:
        EngineFailed: the message says which.

    """
    if len(outputs) != len(tasks):
        raise EngineFailed(f"the engine answered {len(outputs)} of {len(tasks)} texts")
    for task, output in zip(tasks, outputs, strict=True):
        arrays, shapes = _requested(task, output, hidden_size)
        if len(arrays) != len(shapes):
            raise EngineFailed("the engine left out what was asked for")
        for array, shape in zip(arrays, shapes, strict=True):
            _check(array, shape)


def requested(field: Field | None) -> Field:
    """Return a field of an output that its task requests: `check_outputs` has rejected None."""
    assert field is not None  # noqa: S101
    return field


def _requested(
    task: Task, output: Output, hidden_size: int
) -> tuple[Sequence[HiddenState | None], list[Shape]]:
    """Return the arrays of an output that its task requests, and their expected shapes."""
    if isinstance(task, MapsTask):
        return _requested_maps(task, output)
    if isinstance(task, DecomposeTask):
        return _requested_rows(task, output)
    arrays: list[HiddenState | None] = [*output.hidden, *output.map_states]
    states = len(task.hidden_layers) + len(task.map_layers)
    shapes: list[Shape] = [(len(task.input_ids), hidden_size)] * states
    if task.pooling:
        arrays.append(output.pooled)
        mode = task.pooling.mode
        shapes.append((hidden_size * (1 if isinstance(mode, str) else len(mode)),))
    if task.scores:
        arrays.append(output.scores)
        shapes.append(task.scores)
    if task.target:
        target_arrays, target_shapes = _requested_of_target(task.target, output, hidden_size)
        arrays += target_arrays
        shapes += target_shapes
    return arrays, shapes


def _requested_maps(task: MapsTask, output: Output) -> tuple[list[Floats | None], list[Shape]]:
    """Return maps, products of values, and queries, keys and scores, with their shapes."""
    heads, keys = len(task.heads), len(task.keys)
    arrays: list[Floats | None] = [output.maps]
    shapes: list[Shape] = [(heads, len(task.queries), keys)]
    if task.values:
        arrays.append(output.value_products)
        shapes.append((keys, heads, heads))
    if task.scores and (compared := output.head_scores):
        sizes = compared.queries.shape[-1], compared.keys.shape[-1]
        arrays += [compared.queries, compared.keys, compared.scores]
        shapes += [*((heads, keys, size) for size in sizes), (heads, keys, keys)]
    elif task.scores:
        raise EngineFailed("the engine left out what was asked for")
    return arrays, shapes


def _requested_rows(task: DecomposeTask, output: Output) -> tuple[list[Floats | None], list[Shape]]:
    """Return the decomposed rows, and their values unless the layer is the last."""
    rows, step = output.decomposed, task.step
    if rows is None or (rows.values is None) != task.last:
        raise EngineFailed("the engine left out what was asked for")
    if rows.values is None:
        return [rows.parts], [step.parts.shape]
    groups, size = rows.values.shape[0], rows.values.shape[-1]
    if step.values is not None:
        groups, size = step.values.shape[0], step.values.shape[-1]
    return [rows.parts, rows.values], [step.parts.shape, (groups, *step.parts.shape[:2], size)]


def _requested_of_target(
    target: Target, output: Output, hidden_size: int
) -> tuple[list[Floats | None], list[Shape]]:
    """Return the decoder's states and log-probabilities of a target, with their shapes."""
    decoded, tokens = output.target, len(target.labels)
    if decoded is None or len(decoded.hidden) != len(target.hidden_layers):
        raise EngineFailed("the engine left out what was asked for")
    arrays: list[Floats | None] = [*decoded.hidden, *decoded.cross]
    states = len(target.hidden_layers) + len(target.cross_layers)
    shapes: list[Shape] = [(tokens, hidden_size)] * states
    if target.logprobs:
        arrays.append(decoded.logprobs)
        shapes.append((tokens,))
    return arrays, shapes


def _check(array: HiddenState | None, shape: tuple[int, ...]) -> None:
    if array is None:
        raise EngineFailed("the engine left out what was asked for")
    if array.shape != shape:
        raise EngineFailed("the engine answered with a wrong shape")
    if isinstance(array, np.ndarray) and not math.isfinite(float(array.sum())):
        raise EngineFailed("the engine answered with a value that is not finite")
