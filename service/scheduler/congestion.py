"""Detection of a standing queue, which unlike a burst never empties.

Controlled delay (K. Nichols, V. Jacobson, "Controlling queue delay", ACM Queue 2012; B. Maurer,
"Fail at scale", ACM Queue 2015): a queue stands if its shortest wait within an interval exceeds the
target. It then only delays every request. While the queue stands, requests are admitted up to a
wait of twice the target; otherwise up to their own longest wait.
"""

from __future__ import annotations

import math

INTERVAL_SECONDS = 0.1
"""Length of an interval."""


class Congestion:
    """Detector of a standing queue of a lane, by the predicted waits of its requests."""

    def __init__(self, target_seconds: float = math.inf) -> None:
        self.standing = False
        self._target = target_seconds
        self._shortest = 0.0
        """Shortest predicted wait of the interval."""
        self._ends = -math.inf
        """`time.monotonic()` at the end of the interval."""

    def observe(self, wait: float, now: float) -> None:
        """Record the predicted wait of a new request.

        Args:
            wait: predicted seconds until the request begins.
            now: `time.monotonic()`.

        """
        if now >= self._ends:
            self.standing = self._shortest > self._target
            self._shortest, self._ends = wait, now + INTERVAL_SECONDS
        self._shortest = min(self._shortest, wait)
        if wait <= self._target:
            self.standing = False

    def most_seconds(self, patience: float) -> float:
        """Return the longest wait for which a request is admitted.

        Args:
            patience: longest wait of the request by its own deadline and the queue's limit.

        """
        return min(patience, 2 * self._target) if self.standing else patience
