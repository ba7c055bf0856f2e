"""Cost of one text on one thread: its vector, one head of its last layer, and memory."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.timing import in_turn, median_ratio
from model.artifact.manifest import load_artifact
from model.numerics.batch import Batch, pack
from model.numerics.pooling import TextPooling
from model.runtimes.capabilities import HeadMaps, capability
from model.runtimes.onnx import OnnxRuntime
from testing.memory import MEBIBYTE, forget_peak, memory_bytes

LONG = 2048
"""Number of tokens from which a text runs without a warm-up: its first run counts."""
ROUND_TOKENS = 6000
"""Approximate tokens of all rounds of one length; a short text runs the requested rounds."""


@dataclass(frozen=True)
class Alone:
    """Cost of a text of one length."""

    tokens: int
    ms_a_token: float
    """Processor milliseconds of the vector divided by the tokens, median over the rounds."""
    one_head: float
    """Time of one head's weights, computed from the text, over the vector's: median of ratios."""
    peak_mib: float
    """Peak memory in MiB above the loaded model's."""


def measure(folder: Path, lengths: Sequence[int], rounds: int) -> list[Alone]:
    """Return the cost of each length that an artifact's encoder takes, the shortest first."""
    runtime = OnnxRuntime(load_artifact(folder))
    loaded = memory_bytes("self", "VmRSS")
    fitting = sorted(n for n in lengths if n <= runtime.config.max_position_embeddings)
    return [of_length(runtime, tokens, rounds, loaded) for tokens in fitting]


def of_length(runtime: OnnxRuntime, tokens: int, rounds: int, loaded: int) -> Alone:
    """Return the cost of one length; the loaded model holds `loaded` bytes."""
    last = runtime.config.num_hidden_layers
    batch = random_batch(tokens, runtime.config.vocab_size)

    def one_head() -> None:
        (entering,), _ = runtime.encode(batch, [(0, last - 1)], [])
        capability(runtime, HeadMaps).attention(entering, entering, last - 1, [0])

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
    """Return a batch of one text of seeded random tokens."""
    ids = np.random.default_rng(tokens).integers(0, vocab_size, tokens)
    return pack([(ids, np.zeros_like(ids))])
