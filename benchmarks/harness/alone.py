"""One text alone on one thread: its vector, one head of its last layer, and the memory of both."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.timing import in_turn, median_ratio
from model.artifact.batch import Batch, pack
from model.artifact.manifest import load_artifact
from model.artifact.pooling import TextPooling
from model.runtimes.onnx import OnnxRuntime
from testing.memory import MEBIBYTE, forget_peak, memory_bytes

LONG = 2048
"""A text of so many tokens warms itself up: its first run is not left out."""
ROUND_TOKENS = 6000
"""Of all rounds of one length, about; a short text has as many rounds as are asked for."""


@dataclass(frozen=True)
class Alone:
    """Cost of one length."""

    tokens: int
    ms_a_token: float
    """Processor time of the vector, median of the rounds."""
    one_head: float
    """One head's weights, from the text on, times the vector: the median of the rounds' ratios."""
    peak_mib: float
    """Above what the loaded model holds."""


def measure(folder: Path, lengths: Sequence[int], rounds: int) -> list[Alone]:
    """The cost of each length that an artifact's encoder takes, the shortest first."""
    runtime = OnnxRuntime(load_artifact(folder))
    loaded = memory_bytes("self", "VmRSS")
    fitting = sorted(n for n in lengths if n <= runtime.config.max_position_embeddings)
    return [of_length(runtime, tokens, rounds, loaded) for tokens in fitting]


def of_length(runtime: OnnxRuntime, tokens: int, rounds: int, loaded: int) -> Alone:
    """The cost of one length, where the loaded model holds so many bytes."""
    last = runtime.config.num_hidden_layers
    batch = random_batch(tokens, runtime.config.vocab_size)

    def one_head() -> None:
        (entering,), _ = runtime.encode(batch, [(0, last - 1)], [])
        runtime.attention(entering, entering, last - 1, [0])

    ways = {
        "vector": lambda: runtime.encode(batch, [], [TextPooling(0, last, "mean")]),
        "one head": one_head,
    }
    forget_peak(os.getpid())
    times = max(1, min(rounds, ROUND_TOKENS // tokens))
    seconds = in_turn(ways, times, 0 if tokens >= LONG else 1, clock=time.process_time)
    return Alone(
        tokens=tokens,
        ms_a_token=1000 * statistics.median(seconds["vector"]) / tokens,
        one_head=median_ratio(seconds["one head"], seconds["vector"]),
        peak_mib=(memory_bytes("self", "VmHWM") - loaded) / MEBIBYTE,
    )


def random_batch(tokens: int, vocab_size: int) -> Batch:
    """One text of seeded random tokens."""
    ids = np.random.default_rng(tokens).integers(0, vocab_size, tokens)
    return pack([(ids, np.zeros_like(ids))])
