"""Upper bounds of histogram buckets.

Quantiles are interpolated within a bucket, so their error is at most the ratio of its bounds.
"""

from __future__ import annotations

SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.5, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 60.0),
)
"""Bounds in seconds, from the time of a small batch to the time limit of a large batch. Above
20 ms, neighbours differ by a factor of at most 1.75."""
TEXTS = tuple(2**power for power in range(12))
"""Bounds of 1 … 2048 texts: a CUDA batch has up to 16384 tokens, and a text rarely below eight."""
BATCH_TOKENS = tuple(2**power for power in range(2, 16))
"""Bounds of 4 … 32768 tokens, twice the maximum of a batch on CUDA."""
INPUT_TOKENS = tuple(2**power for power in range(2, 14))
"""Bounds of 4 … 8192 tokens."""
PREDICTION = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0)
"""Ratios of actual to predicted bytes; above 1, a reply took more memory than was reserved."""
