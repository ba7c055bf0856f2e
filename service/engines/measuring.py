"""Measurement of an engine's batches before the first request, on texts without content."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import BatchCost, Engine, MapsTask, Pooling, Task, TextTask
from service.system.resources import lower_priority


def blank_text(config: EncoderConfig, tokens: int, pooling: Pooling) -> TextTask:
    """Return a text of token 0, or black patches of a picture, for its pooled vector."""
    ids, features = np.zeros(tokens, np.int64), config.pixel_features
    pixels = np.zeros((tokens, features), np.float32) if features else None
    return TextTask(ids, ids, pooling=pooling, pixels=pixels)


BATCHES = ((16, 16), (128, 32), (512, 256))
"""Tokens of each measured batch, and maximum tokens of its texts. Forecasts of larger batches
extrapolate from the last two."""
MOST_SECONDS = (math.inf, 1.0, 0.05)
"""Maximum predicted seconds of each of these batches, since every start waits for them. The first
batch is no good base for a prediction: it is the slowest per token."""
ROUNDS = 2
"""Number of rounds of each measurement, of which the fastest counts. OpenVINO compiles kernels in
the first one."""
TasksOf = Callable[[Sequence[int]], Sequence[Task]]
"""Function from the lengths of texts to the tasks of a batch."""


def measured_batches(
    engine: Engine, tasks_of: TasksOf, batch_tokens: int, longest: int
) -> list[tuple[int, float]]:
    """Return tokens and seconds of growing batches, with `engine.concurrency` calls at once.

    The time of a size is the slowest call of a round, in the fastest round: the first ones may
    allocate memory or compile kernels, and any may be disturbed by other processes. A batch that
    would take longer than `MOST_SECONDS` is not computed: it gets as many seconds a token as the
    batch before, which is up to 1.5 times too long, so that no deadline is promised that cannot be
    met. The first real batches correct it.
    """
    measured: list[tuple[int, float]] = []
    with ThreadPoolExecutor(engine.concurrency, "measuring", lower_priority) as threads:
        for (size, longest_text), most in zip(BATCHES, MOST_SECONDS, strict=True):
            lengths = _lengths(min(size, batch_tokens), min(longest, longest_text))
            if measured and sum(lengths) <= measured[-1][0]:
                continue
            if measured:
                tokens, took = measured[-1]
                if (seconds := took * sum(lengths) / tokens) > most:
                    measured.append((sum(lengths), seconds))
                    continue
            tasks = tasks_of(lengths)
            seconds = min(_slowest(engine, tasks, threads) for _ in range(ROUNDS))
            measured.append((sum(task.tokens for task in tasks), seconds))
    return measured


def measured_cost(
    engine: Engine, tasks_of: TasksOf, measured: Sequence[tuple[int, float]], longest: int
) -> BatchCost:
    """Return the cost in seconds by the batches measured, and one more, with padding.

    The first of `measured` is one short text; the one with padding has as many tokens as the
    second. The cost is the default if there is no second batch of several texts, or one that takes
    longer than `MOST_SECONDS`.
    """
    length = min(longest, BATCHES[1][1])
    tokens, unpadded = measured[1] if len(measured) > 1 else (0, math.inf)
    texts = tokens // length
    if unpadded > MOST_SECONDS[-1] or texts < 2 or length < 2:
        return BatchCost()
    mixed = [length] + [length // 2] * (2 * texts - 2)
    tasks, (_, fixed) = tasks_of(mixed), measured[0]
    with ThreadPoolExecutor(engine.concurrency, "measuring", lower_priority) as threads:
        padded = min(_slowest(engine, tasks, threads) for _ in range(ROUNDS))
    token = max(0.0, unpadded - fixed) / tokens
    padding = padded - unpadded + token * (tokens - sum(mixed))
    return BatchCost(fixed, token, max(0.0, padding) / (length * len(mixed) - sum(mixed)))


def texts_of(config: EncoderConfig) -> TasksOf:
    """Return a function from lengths to text tasks that each request a vector."""
    pooling = Pooling(config.num_hidden_layers, "cls")
    return lambda lengths: [blank_text(config, length, pooling) for length in lengths]


def maps_of(config: EncoderConfig) -> TasksOf:
    """Return a function from lengths to tasks that each request the maps of a layer's heads."""
    heads = tuple(range(config.num_attention_heads))

    def task(length: int) -> MapsTask:
        zeros = np.zeros((length, config.hidden_size), np.float32)
        return MapsTask(zeros, zeros, 0, heads)

    return lambda lengths: [task(length) for length in lengths]


def _lengths(tokens: int, longest: int) -> list[int]:
    """Return lengths of texts that have about `tokens` tokens in total."""
    return [longest] * (tokens // longest) or [tokens]


def _slowest(engine: Engine, tasks: Sequence[Task], threads: ThreadPoolExecutor) -> float:
    """Return the seconds of the slowest of `engine.concurrency` calls at once."""
    calls = [threads.submit(_seconds, engine, tasks) for _ in range(engine.concurrency)]
    return max(call.result() for call in calls)


def _seconds(engine: Engine, tasks: Sequence[Task]) -> float:
    began = time.monotonic()
    engine.run(tasks)
    return time.monotonic() - began
