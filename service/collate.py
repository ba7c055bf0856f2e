"""Tasks to a packed batch, and hidden states back to outputs. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from model.batch import Batch, pack
from model.pooling import pool
from service.engines.base import Floats, Output, Task
from service.errors import EngineFailed


def collate(tasks: Sequence[Task]) -> Batch:
    """Lay the texts end to end."""
    return pack([(task.input_ids, task.segment_ids) for task in tasks])


def needed_layers(tasks: Sequence[Task]) -> list[int]:
    """The hidden states that a batch needs, ascending: asked for, pooled, or entering a map."""
    needed: set[int] = set()
    for task in tasks:
        needed.update(task.hidden_layers, task.attention_layers)
        if task.pooling:
            needed.add(task.pooling.layer)
    return sorted(needed)


def uncollate(tasks: Sequence[Task], hidden: Mapping[int, Floats]) -> list[Output]:
    """Cut each text's hidden states out of the packed ones `[T, H]`, and pool them."""
    outputs = []
    for rows, task in zip(token_rows(tasks), tasks, strict=True):
        states = [hidden[layer][rows] for layer in task.hidden_layers]
        pooled = None
        if task.pooling:
            tokens = hidden[task.pooling.layer][rows][task.pooling.first_token :]
            pooled = pool(tokens, task.pooling.mode)
        outputs.append(Output(states, pooled))
    return outputs


def token_rows(tasks: Sequence[Task]) -> Iterator[slice]:
    """Which of a batch's T tokens each text owns."""
    ends = itertools.accumulate(task.tokens for task in tasks)
    for task, end in zip(tasks, ends, strict=True):
        yield slice(end - task.tokens, end)


def check_outputs(tasks: Sequence[Task], outputs: Sequence[Output]) -> None:
    """Refuse an answer that cannot be right before it reaches anyone.

    Raises:
        EngineFailed: wrong count, wrong shapes, more than one hidden size, or a value that is
            not finite.

    """
    if len(outputs) != len(tasks):
        raise EngineFailed(f"the engine answered {len(outputs)} of {len(tasks)} texts")
    vectors = (array for output in outputs for array in (*output.hidden, output.pooled))
    size = next((array.shape[-1:] for array in vectors if array is not None), ())
    for task, output in zip(tasks, outputs, strict=True):
        arrays: list[Floats | None] = [*output.hidden]
        shapes: list[tuple[int, ...]] = [(task.tokens, *size)] * len(task.hidden_layers)
        if task.pooling:
            arrays.append(output.pooled)
            shapes.append(size)
        if task.attention_layers:
            arrays.append(output.attention)
            s = task.tokens
            shapes.append((len(task.attention_layers), len(task.attention_heads), s, s))
        if len(arrays) != len(shapes):
            raise EngineFailed("the engine left out what was asked for")
        for array, shape in zip(arrays, shapes, strict=True):
            if array is None:
                raise EngineFailed("the engine left out what was asked for")
            if array.shape != shape:
                raise EngineFailed("the engine answered with a wrong shape")
            if not math.isfinite(float(array.sum())):
                raise EngineFailed("the engine answered with a value that is not finite")
