"""Tasks to a packed batch, and hidden states back to outputs. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from model.artifact.batch import Batch, pack
from model.artifact.pooling import pool
from model.config import EncoderConfig
from service.engines.contract import Floats, MapsTask, Output, Task, TextTask
from service.errors import EngineFailed


def run_both(
    tasks: Sequence[Task],
    encode: Callable[[Sequence[TextTask]], list[Output]],
    attend: Callable[[MapsTask], Floats],
) -> list[Output]:
    """Answer tasks of both kinds, in order: the texts at once, the maps one by one."""
    texts = [task for task in tasks if isinstance(task, TextTask)]
    encoded = iter(encode(texts) if texts else ())
    return [
        next(encoded) if isinstance(task, TextTask) else Output(maps=attend(task)) for task in tasks
    ]


def collate(tasks: Sequence[TextTask]) -> Batch:
    """Lay the texts end to end."""
    return pack([(task.input_ids, task.segment_ids) for task in tasks])


def head_mask(tasks: Sequence[TextTask], config: EncoderConfig) -> Floats | None:
    """`[B, L, N]`, 0 for each ablated head and 1 for the others; None if there is none."""
    if not any(task.ablated for task in tasks):
        return None
    shape = (len(tasks), config.num_hidden_layers, config.num_attention_heads)
    mask = np.ones(shape, np.float32)
    for row, task in zip(mask, tasks, strict=True):
        for layer, head in task.ablated:
            row[layer, head] = 0
    return mask


def needed_layers(tasks: Sequence[TextTask]) -> list[int]:
    """The hidden states that a batch needs, ascending: asked for, or pooled."""
    needed: set[int] = set()
    for task in tasks:
        needed.update(task.hidden_layers)
        if task.pooling:
            needed.add(task.pooling.layer)
    return sorted(needed)


def uncollate(tasks: Sequence[TextTask], hidden: Mapping[int, Floats]) -> list[Output]:
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


def token_rows(tasks: Sequence[TextTask]) -> Iterator[slice]:
    """Which of a batch's T tokens each text owns."""
    ends = itertools.accumulate(task.tokens for task in tasks)
    for task, end in zip(tasks, ends, strict=True):
        yield slice(end - task.tokens, end)


def check_outputs(tasks: Sequence[Task], outputs: Sequence[Output], hidden_size: int) -> None:
    """Refuse an answer that cannot be right before it reaches anyone.

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
                shapes.append((hidden_size,))
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
