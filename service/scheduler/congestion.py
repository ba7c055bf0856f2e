"""A queue that only stands, told from one that a burst has filled.

Controlled delay (K. Nichols, V. Jacobson, "Controlling queue delay", ACM Queue 2012; B. Maurer,
"Fail at scale", ACM Queue 2015): a queue whose shortest wait within an interval exceeds the target
serves nobody, as it never empties. While it stands, requests are admitted up to twice the target;
otherwise as long as they may wait.
"""

from __future__ import annotations

import math

INTERVAL_SECONDS = 0.1


class Congestion:
    """Whether the queue of a lane stands, by the waits that are predicted for its requests."""

    def __init__(self, target_seconds: float = math.inf) -> None:
        self.standing = False
        self._target = target_seconds
        self._shortest = 0.0
        """Shortest wait of the interval."""
        self._ends = -math.inf
        """`time.monotonic()` at the end of the interval."""

    def observe(self, wait: float, now: float) -> None:
        """A request comes for which so many seconds are predicted."""
        if now >= self._ends:
            self.standing = self._shortest > self._target
            self._shortest, self._ends = wait, now + INTERVAL_SECONDS
        self._shortest = min(self._shortest, wait)
        if wait <= self._target:
            self.standing = False

    def most_seconds(self, patience: float) -> float:
        """The longest wait for which a request is admitted that may wait so long."""
        return min(patience, 2 * self._target) if self.standing else patience
