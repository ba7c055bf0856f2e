"""How much is measured: in full, or as a quick look that fits a test on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Every number that trades time for certainty."""

    rounds: int
    """Samples of a way; medians are given."""
    text_rounds: int
    """The same with tokenising, which takes longer."""
    companies: int
    """How often correctness puts the same texts into other random batches."""
    matrices: tuple[int, ...]
    """Rows of the square matrices whose product is the ceiling."""
    copy_bytes: int
    shape: tuple[int, int, int, int]
    """Layers, heads, hidden and intermediate size of the second model."""
    lengths: tuple[int, ...]
    """Tokens of a text, where all are alike."""
    pass_tokens: int
    """Of all texts of one length."""
    mixed_texts: int
    batch_tokens: tuple[int, ...]
    """Of a batch, padding included: the best is kept."""
    threads: tuple[int, ...]
    """That call the runtime at once: the best is kept."""
    request_texts: tuple[int, ...]
    workers: tuple[int, ...]
    """Of the service, as far as there are twice as many cores."""
    connections: int
    load_seconds: float
    map_tokens: int
    memory_batches: int
    settled_batches: int
    """After so many, device memory must not grow."""
    memory_tokens: int
    """Most of a batch there."""


FULL = Sizes(
    rounds=5,
    text_rounds=3,
    companies=3,
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
QUICK = Sizes(
    rounds=2,
    text_rounds=1,
    companies=1,
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
