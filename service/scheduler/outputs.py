"""Computation of a batch, and checks of its outputs, before any of them reaches a caller.

A batch that fails is halved recursively. A text that an engine cannot compute therefore only delays
the other texts of its batch, and no text fails by an error that occurs once.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from service.engines.contract import (
    Array,
    DecomposeTask,
    Engine,
    MapsTask,
    Output,
    TargetOutput,
    Task,
    TextTask,
)
from service.errors import EngineFailed, EngineOutOfMemory, ServiceError
from service.scheduler.queue import Slot

MOST_RUNS = 16
"""Maximum runs of one batch: enough to find one failing text among 128. After the last run, all
remaining texts fail."""
Field = TypeVar("Field")
Inspect = Callable[[Sequence[Task], Sequence[Output]], None]
"""Function of a batch and its outputs, called in the worker's thread."""
Slots = Sequence[Slot[object]]
Expected = tuple[Array | None, tuple[int, ...]]
"""Array of an output, and the shape that it must have."""
_LEFT_OUT = "the engine left out what was asked for"


def compute(
    engine: Engine, slots: Slots, inspect: Inspect | None
) -> Iterator[tuple[Slots, float, ServiceError | None]]:
    """Compute a batch, in halves if it fails; yield each part, its seconds, and its error if any.

    A batch that runs out of memory is halved once, and tasks of one call fail together. Tasks that
    have ended meanwhile are left out of the halves. The values of the tasks are set.
    """
    parts, runs = [slots], 0
    while parts:
        part, began = parts.pop(), time.monotonic()
        if runs:
            part = [slot for slot in part if not slot.work.future.done()]
        if not part:
            continue
        runs += 1
        try:
            _run(engine, part, inspect)
        except ServiceError as error:
            first, middle = part[0].work, len(part) // 2
            again = isinstance(error, EngineOutOfMemory) and runs == 1
            if isinstance(error, EngineFailed) and runs < MOST_RUNS:
                again = again or any(slot.work is not first for slot in part)
            if again and middle:
                parts += part[middle:], part[:middle]
            else:
                yield part, 0.0, error
        else:
            yield part, time.monotonic() - began, None


def _run(engine: Engine, slots: Slots, inspect: Inspect | None) -> None:
    """Set the value of each task."""
    tasks = [slot.task for slot in slots]
    try:
        outputs = engine.run(tasks)
        check_outputs(tasks, outputs, engine.hidden_size)
        if inspect:
            inspect(tasks, outputs)
        for slot, output in zip(slots, outputs, strict=True):
            slot.value = slot.reduce(output) if slot.reduce else output
    except ServiceError:
        raise
    except MemoryError as error:
        raise EngineOutOfMemory("there is no memory left", retry_after_seconds=1) from error
    except BaseException as error:  # any error has to reach the callers
        raise EngineFailed(f"the engine raised {type(error).__name__}") from error


def check_outputs(tasks: Sequence[Task], outputs: Sequence[Output], hidden_size: int) -> None:
    """Raise if outputs have a wrong number, a wrong shape or a value that is not finite."""
    if len(outputs) != len(tasks):
        raise EngineFailed(f"the engine answered {len(outputs)} of {len(tasks)} texts")
    for task, output in zip(tasks, outputs, strict=True):
        if isinstance(task, TextTask):
            arrays = _of_text(task, output, hidden_size)
        else:
            arrays = _of_state(task, output)
        for array, shape in arrays:
            if array is None:
                raise EngineFailed(_LEFT_OUT)
            if array.shape != shape:
                raise EngineFailed("the engine answered with a wrong shape")
            if isinstance(array, np.ndarray) and not math.isfinite(np.add.reduce(array, axis=None)):
                raise EngineFailed("the engine answered with a value that is not finite")


def requested(field: Field | None) -> Field:
    """Return a field of an output that its task requests: `check_outputs` has rejected None."""
    assert field is not None  # noqa: S101
    return field


def _of_text(task: TextTask, output: Output, hidden_size: int) -> Iterator[Expected]:
    """Yield each array that a text requests, None if the output lacks it, and its shape."""
    states = len(task.input_ids), hidden_size
    if task.hidden_layers or output.hidden:
        yield from _states(output.hidden, task.hidden_layers, states)
    if task.map_layers or output.map_states:
        yield from _states(output.map_states, task.map_layers, states)
    if task.pooling:
        mode = task.pooling.mode
        yield output.pooled, (hidden_size * (1 if isinstance(mode, str) else len(mode)),)
    if task.scores:
        yield output.scores, task.scores
    if target := task.target:
        decoded, tokens = output.target or TargetOutput(), len(target.labels)
        yield from _states(decoded.hidden, target.hidden_layers, (tokens, hidden_size))
        yield from _states(decoded.cross, target.cross_layers, (tokens, hidden_size))
        if target.logprobs:
            yield decoded.logprobs, (tokens,)


def _of_state(task: MapsTask | DecomposeTask, output: Output) -> Iterator[Expected]:
    """Yield the arrays of maps, or of decomposed rows, as for `_of_text`."""
    if isinstance(task, MapsTask):
        heads, keys, compared = len(task.heads), len(task.keys), output.head_scores
        yield output.maps, (heads, len(task.queries), keys)
        if task.values:
            yield output.value_products, (keys, heads, heads)
        if task.scores:
            yield compared.scores if compared else None, (heads, keys, keys)
            for vectors in (compared.queries, compared.keys) if compared else ():
                yield vectors, (heads, keys, vectors.shape[-1])
        return
    rows, step = output.decomposed, task.step
    yield rows.parts if rows else None, step.parts.shape
    values = rows.values if rows else None
    if (values is None) != task.last:  # no layer follows the last
        raise EngineFailed(_LEFT_OUT)
    if values is not None:
        like = values if step.values is None else step.values
        yield values, (like.shape[0], *step.parts.shape[:2], like.shape[-1])


def _states(
    arrays: Sequence[Array], layers: Sequence[int], shape: tuple[int, ...]
) -> Iterator[Expected]:
    if len(arrays) != len(layers):
        raise EngineFailed(_LEFT_OUT)
    return zip(arrays, itertools.repeat(shape))
