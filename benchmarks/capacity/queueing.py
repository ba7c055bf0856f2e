"""The closed form of a queue whose server takes all that waits as one batch.

A batch of b requests takes τ₀ + α·b seconds. Poisson arrivals of rate λ, one server, no limit of a
batch: Inoue 2021, https://arxiv.org/abs/1912.06322, theorem 2 (an upper bound that is close).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchCost:
    """Seconds of a batch: a constant, and as much again for each request in it."""

    batch_seconds: float
    """τ₀."""
    request_seconds: float
    """α."""

    def __call__(self, requests: float) -> float:
        """Seconds of a batch of so many requests."""
        return self.batch_seconds + self.request_seconds * requests

    def capacity(self, largest_batch: float) -> float:
        """Requests a second of a server whose batches are all as large as they may be."""
        return largest_batch / self(largest_batch)


def mean_latency(rate: float, cost: BatchCost) -> float:
    """Most seconds from arrival to reply on the mean, waiting and its own batch.

    Args:
        rate: requests a second, λ; less than 1 / α.
        cost: of a batch.

    Raises:
        ValueError: no batch is large enough for this rate.

    """
    constant, each = cost.batch_seconds, cost.request_seconds
    load = rate * each
    if load >= 1:
        raise ValueError(f"{rate:g} requests a second are more than 1 / {each:g} s")
    light = (each + constant) / (2 * (1 - load))
    light *= 1 + 2 * rate * constant + (1 - rate * constant) / (1 + load)
    heavy = 1.5 * constant / (1 - load) + each / 2 * (load + 2) / (1 - load * load)
    return min(light, heavy)
