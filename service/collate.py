"""Tasks to padded arrays, and hidden states back to outputs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from model.batch import Batch, pad
from model.pooling import pool
from service.engines.base import Floats, Output, Task
from service.errors import EngineFailed


def collate(tasks: Sequence[Task], pad_token_id: int) -> Batch:
    """Right-pad the texts to the longest; int64 `[B, S]` each."""
    return pad([(task.input_ids, task.segment_ids) for task in tasks], pad_token_id)


def needed_layers(tasks: Sequence[Task]) -> list[int]:
    """The hidden states that a batch needs, ascending: asked for, pooled, or entering a map."""
    needed: set[int] = set()
    for task in tasks:
        needed.update(task.hidden_layers, task.attention_layers)
        if task.pooling:
            needed.add(task.pooling.layer)
    return sorted(needed)


def uncollate(tasks: Sequence[Task], hidden: Mapping[int, Floats]) -> list[Output]:
    """Cut each text's hidden states out of the padded ones `[B, S, H]`, and pool them."""
    outputs = []
    for row, task in enumerate(tasks):
        states = [hidden[layer][row, : task.tokens] for layer in task.hidden_layers]
        pooled = None
        if task.pooling:
            tokens = hidden[task.pooling.layer][row, task.pooling.first_token : task.tokens]
            pooled = pool(tokens, task.pooling.mode)
        outputs.append(Output(states, pooled))
    return outputs


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
