"""The seconds of an engine's batches, measured before the first request for the first forecasts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from service.engines.contract import Engine, Pooling, TextTask
from service.system.resources import lower_priority

TEXT_TOKENS = 256
"""Most tokens of a measured text, so that a batch of several is one of texts side by side."""
BATCH_TOKENS = (16, 128, 512)
"""Tokens of the measured batches; a forecast of larger ones goes on from the last two."""
MOST_SECONDS = 1.0
"""Predicted seconds of a batch that is still measured."""


def measured_batches(
    engine: Engine, layer: int, batch_tokens: int, longest: int
) -> list[tuple[int, float]]:
    """Measure batches of growing sizes, with as many calls at once as the engine takes.

    Each size is computed twice, as the first batch of a size may allocate memory; of the calls of
    the second round the slowest counts.

    Args:
        engine: an engine that nobody else uses yet.
        layer: number of the last hidden state.
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
            tasks = _texts(size, min(longest, TEXT_TOKENS), layer)
            for _ in range(2):
                calls = [threads.submit(_seconds, engine, tasks) for _ in range(engine.concurrency)]
                seconds = max(call.result() for call in calls)
            found.append((sum(task.tokens for task in tasks), seconds))
    return found


def _texts(tokens: int, longest: int, layer: int) -> list[TextTask]:
    """Return texts with about `tokens` tokens together; each asks for its vector."""
    lengths = [longest] * (tokens // longest) or [tokens]
    ids = [np.zeros(length, np.int64) for length in lengths]
    return [TextTask(each, each, pooling=Pooling(layer, "cls")) for each in ids]


def _seconds(engine: Engine, tasks: Sequence[TextTask]) -> float:
    began = time.monotonic()
    engine.run(tasks)
    return time.monotonic() - began
