"""Checks of an engine's outputs, before any of them reaches a caller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from service.engines.contract import DecomposeTask, MapsTask, Output, Task, TextTask
from service.errors import EngineFailed

Field = TypeVar("Field")


class Shaped(Protocol):
    """Array, or a hidden state on a device, whose values are not checked."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""


def check_outputs(tasks: Sequence[Task], outputs: Sequence[Output], hidden_size: int) -> None:
    """Raise if outputs have a wrong number, a wrong shape or a value that is not finite.

    Raises:
        EngineFailed: the message says which.

    """
    if len(outputs) != len(tasks):
        raise EngineFailed(f"the engine answered {len(outputs)} of {len(tasks)} texts")
    for task, output in zip(tasks, outputs, strict=True):
        if isinstance(task, TextTask):
            _check_text(task, output, hidden_size)
        elif isinstance(task, MapsTask):
            _check_maps(task, output)
        else:
            _check_rows(task, output)


def requested(field: Field | None) -> Field:
    """Return a field of an output that its task requests: `check_outputs` has rejected None."""
    assert field is not None  # noqa: S101
    return field


def _check_text(task: TextTask, output: Output, hidden_size: int) -> None:
    """Check states, pooled vectors, scores, and a decoder's states and log-probabilities."""
    states, target, decoded = (len(task.input_ids), hidden_size), task.target, output.target
    if task.hidden_layers or output.hidden:
        _check_all(output.hidden, len(task.hidden_layers), states)
    if task.map_layers or output.map_states:
        _check_all(output.map_states, len(task.map_layers), states)
    if task.pooling:
        mode = task.pooling.mode
        _check(output.pooled, (hidden_size * (1 if isinstance(mode, str) else len(mode)),))
    if task.scores:
        _check(output.scores, task.scores)
    if target:
        tokens = len(target.labels)
        _check_all(
            decoded.hidden if decoded else None, len(target.hidden_layers), (tokens, hidden_size)
        )
        _check_all(
            decoded.cross if decoded else None, len(target.cross_layers), (tokens, hidden_size)
        )
        if target.logprobs:
            _check(decoded.logprobs if decoded else None, (tokens,))


def _check_maps(task: MapsTask, output: Output) -> None:
    """Check maps, products of values, and queries, keys and scores."""
    heads, keys, compared = len(task.heads), len(task.keys), output.head_scores
    _check(output.maps, (heads, len(task.queries), keys))
    if task.values:
        _check(output.value_products, (keys, heads, heads))
    if task.scores:
        _check(compared.scores if compared else None, (heads, keys, keys))
        for vectors in (compared.queries, compared.keys) if compared else ():
            _check(vectors, (heads, keys, vectors.shape[-1]))


def _check_rows(task: DecomposeTask, output: Output) -> None:
    """Check decomposed rows, and their values unless the layer is the last."""
    rows, step = output.decomposed, task.step
    _check(rows.parts if rows else None, step.parts.shape)
    values = rows.values if rows else None
    if (values is None) != task.last:
        raise EngineFailed(_LEFT_OUT)
    if values is not None:
        like = values if step.values is None else step.values
        _check(values, (like.shape[0], *step.parts.shape[:2], like.shape[-1]))


_LEFT_OUT = "the engine left out what was asked for"


def _check_all(arrays: Sequence[Shaped] | None, count: int, shape: tuple[int, ...]) -> None:
    if arrays is None or len(arrays) != count:
        raise EngineFailed(_LEFT_OUT)
    for array in arrays:
        _check(array, shape)


def _check(array: Shaped | None, shape: tuple[int, ...]) -> None:
    if array is None:
        raise EngineFailed(_LEFT_OUT)
    if array.shape != shape:
        raise EngineFailed("the engine answered with a wrong shape")
    if isinstance(array, np.ndarray) and not math.isfinite(np.add.reduce(array, axis=None)):
        raise EngineFailed("the engine answered with a value that is not finite")
