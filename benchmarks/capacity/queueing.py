"""Closed form of the latency in a queue whose server takes all waiting requests as one batch.

A batch of b requests takes τ₀ + α·b seconds. Poisson arrivals of rate λ, one server, no limit of a
batch: Inoue 2021, https://arxiv.org/abs/1912.06322, theorem 2 (an upper bound that is close).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchCost:
    """Seconds of a batch: a constant, and a constant for each request."""

    batch_seconds: float
    """Constant seconds, τ₀."""
    request_seconds: float
    """Seconds of each request, α."""

    def __call__(self, requests: float) -> float:
        """Return the seconds of a batch of `requests` requests."""
        return self.batch_seconds + self.request_seconds * requests

    def capacity(self, largest_batch: float) -> float:
        """Return the requests a second of a server whose batches are all full."""
        return largest_batch / self(largest_batch)


def mean_latency(rate: float, cost: BatchCost) -> float:
    """Return an upper bound of the mean seconds from arrival to reply, waiting and own batch.

    Args:
        rate: requests a second, λ; less than 1 / α.
        cost: seconds of a batch.

    Raises:
        ValueError: the rate is 1 / α or more, so that no batch is large enough.

    """
    constant, each = cost.batch_seconds, cost.request_seconds
    load = rate * each
    if load >= 1:
        raise ValueError(f"{rate:g} requests a second are more than 1 / {each:g} s")
    light = (each + constant) / (2 * (1 - load))
    light *= 1 + 2 * rate * constant + (1 - rate * constant) / (1 + load)
    heavy = 1.5 * constant / (1 - load) + each / 2 * (load + 2) / (1 - load * load)
    return min(light, heavy)
