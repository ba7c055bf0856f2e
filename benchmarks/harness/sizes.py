"""Sizes of a run: full, short, or small enough for a test on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from model.config.precision import Precision


@dataclass(frozen=True)
class Sizes:
    """Numbers that trade time for certainty."""

    batch_rounds: int
    """Samples of a way on tokenised texts; medians are reported."""
    text_rounds: int
    """Samples of a way on raw texts, which take longer."""
    shuffles: int
    """Number of times that correctness shuffles the same texts into random batches."""
    matrices: tuple[int, ...]
    """Rows of the square matrices whose product is the ceiling."""
    copy_bytes: int
    shape: tuple[int, int, int, int]
    """Layers, heads, hidden size and intermediate size of the second model."""
    lengths: tuple[int, ...]
    """Tokens of a text in workloads of one length."""
    pass_tokens: int
    """Tokens of all texts of one length."""
    mixed_texts: int
    batch_tokens: tuple[int, ...]
    """Candidates for the tokens of a batch, padding included; the fastest is kept."""
    threads: tuple[int, ...]
    """Candidates for the threads that call the runtime at once; the fastest is kept."""
    request_texts: tuple[int, ...]
    workers: tuple[int, ...]
    """Numbers of workers of the service; a number needs twice that number of cores."""
    connections: int
    load_seconds: float
    map_tokens: int
    memory_batches: int
    settled_batches: int
    """Number of batches after which device memory must not grow."""
    memory_tokens: int
    """Maximum tokens of a batch in the memory step."""
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    """Precisions of the named model in the correctness step."""
    compiled: bool = True
    """Whether sentence-transformers is also compiled, which takes half a minute a model."""


FULL = Sizes(
    batch_rounds=5,
    text_rounds=3,
    shuffles=3,
    matrices=(4096, 8192, 16384),
    copy_bytes=2**28,
    shape=(12, 12, 768, 3072),
    lengths=(32, 128, 512),
    pass_tokens=2**18,
    mixed_texts=10_000,
    batch_tokens=(4096, 8192, 16384, 32768, 65536),
    threads=(2, 4),
    request_texts=(1, 32, 256),
    workers=(1, 2, 4, 8),
    connections=64,
    load_seconds=2.0,
    map_tokens=512,
    memory_batches=10_000,
    settled_batches=1_000,
    memory_tokens=16_384,
)
SHORT = replace(
    FULL,
    batch_rounds=3,
    text_rounds=2,
    shuffles=1,
    matrices=(8192,),
    shape=(4, 12, 768, 3072),
    lengths=(128,),
    mixed_texts=4_000,
    batch_tokens=(16384, 65536),
    threads=(4,),
    request_texts=(1, 256),
    workers=(1, 8),
    load_seconds=1.0,
    precisions=("fp16",),
    compiled=False,
)
"""Sizes that compare two versions in about two minutes; no goal counts."""
QUICK = Sizes(
    batch_rounds=2,
    text_rounds=1,
    shuffles=1,
    matrices=(64, 128),
    copy_bytes=2**20,
    shape=(2, 2, 16, 32),
    lengths=(8, 32, 512),
    pass_tokens=128,
    mixed_texts=24,
    batch_tokens=(128, 512),
    threads=(1, 2),
    request_texts=(1, 4),
    workers=(1,),
    connections=2,
    load_seconds=0.2,
    map_tokens=32,
    memory_batches=40,
    settled_batches=10,
    memory_tokens=256,
)
