"""The seconds of an engine's batches, measured before the first request for the first forecasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import Engine, MapsTask, Pooling, Task, TextTask
from service.system.resources import lower_priority

TEXT_TOKENS = 256
"""Most tokens of a measured text, so that a batch of several is one of texts side by side."""
BATCH_TOKENS = (16, 128, 512)
"""Tokens of the measured batches; a forecast of larger ones goes on from the last two."""
MOST_SECONDS = 1.0
"""Predicted seconds of a batch that is still measured."""
TasksOf = Callable[[Sequence[int]], Sequence[Task]]
"""A function from the lengths of texts to the tasks of a batch."""


def measured_batches(
    engine: Engine, tasks_of: TasksOf, batch_tokens: int, longest: int
) -> list[tuple[int, float]]:
    """Measure batches of growing sizes, with as many calls at once as the engine takes.

    Each size is computed twice, as the first batch of a size may allocate memory and the machine
    may do something else in between; of each round the slowest call counts, of the rounds the
    faster one.

    Args:
        engine: an engine that nobody else uses yet.
        tasks_of: makes the tasks of a batch.
        batch_tokens: the most tokens of a batch.
        longest: the most tokens of a text.

    Returns:
        Tokens and seconds of each batch.

    Raises:
        ServiceError: the engine failed.

    """
    found: list[tuple[int, float]] = []
    with ThreadPoolExecutor(engine.concurrency, "measuring", lower_priority) as threads:
        for size in sorted({min(size, batch_tokens) for size in BATCH_TOKENS}):
            if found and found[-1][1] * size / found[-1][0] > MOST_SECONDS:
                break
            tasks, rounds = tasks_of(_lengths(size, min(longest, TEXT_TOKENS))), []
            for _ in range(2):
                calls = [threads.submit(_seconds, engine, tasks) for _ in range(engine.concurrency)]
                rounds.append(max(call.result() for call in calls))
            found.append((sum(task.tokens for task in tasks), min(rounds)))
    return found


def texts_of(config: EncoderConfig) -> TasksOf:
    """Return a function that makes texts of some lengths; each asks for its vector."""
    pooling = Pooling(config.num_hidden_layers, "cls")

    def tasks(lengths: Sequence[int]) -> list[Task]:
        ids = [np.zeros(length, np.int64) for length in lengths]
        return [TextTask(each, each, pooling=pooling) for each in ids]

    return tasks


def maps_of(config: EncoderConfig) -> TasksOf:
    """Return a function that makes the maps of all heads of a layer, of texts of some lengths."""
    heads = tuple(range(config.num_attention_heads))

    def tasks(lengths: Sequence[int]) -> list[Task]:
        states = [np.zeros((length, config.hidden_size), np.float32) for length in lengths]
        return [MapsTask(each, each, 0, heads) for each in states]

    return tasks


def _lengths(tokens: int, longest: int) -> list[int]:
    """Return the lengths of texts with about `tokens` tokens together."""
    return [longest] * (tokens // longest) or [tokens]


def _seconds(engine: Engine, tasks: Sequence[Task]) -> float:
    began = time.monotonic()
    engine.run(tasks)
    return time.monotonic() - began
