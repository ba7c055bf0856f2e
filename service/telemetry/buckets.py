"""Upper bounds of histogram buckets.

A quantile is linear within its bucket, so it is wrong by at most the ratio of two bounds.
"""

from __future__ import annotations

SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.5, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 60.0),
)
"""From a small batch to the time limit of a large one; from 20 ms on the ratio is at most 1.75."""
TEXTS = tuple(2**power for power in range(12))
"""1 to 2048: a batch of CUDA has up to 16384 tokens, and a text hardly fewer than eight."""
BATCH_TOKENS = tuple(2**power for power in range(2, 16))
"""4 to 32768: twice the tokens of a batch on CUDA."""
INPUT_TOKENS = tuple(2**power for power in range(2, 14))
"""4 to 8192."""
PREDICTION = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0)
"""Actual bytes over predicted; above 1 more was held in memory than was reserved."""
