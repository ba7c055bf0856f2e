"""Predictions of batch times, the errors of predictions, and standing queues.

A standing queue, unlike a burst, never empties. Controlled delay (K. Nichols, V. Jacobson,
"Controlling queue delay", ACM Queue 2012; B. Maurer, "Fail at scale", ACM Queue 2015): a queue
stands if its shortest wait within an interval exceeds the target. It then only delays every
request. While the queue stands, requests are admitted up to a wait of twice the target; otherwise
up to their own longest wait.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

WEIGHT = 0.1
"""Weight of the last batch, or request, in all averages."""
RELAXING = 0.05
"""Share by which a prediction is reduced for each request that was refused because of it."""
SHORTEST_PREDICTION, LARGEST_RATIO = 0.1, 3.0
"""Minimum seconds of a prediction whose error counts, and the largest ratio of actual to predicted
seconds, to which larger ratios are clipped."""
INTERVAL_SECONDS = 0.1
"""Length of an interval in which a queue stands or not."""


@dataclass
class _Size:
    """Number of batches of about one size, and their mean tokens and seconds."""

    batches: int = 0
    tokens: float = 0.0
    seconds: float = 0.0


class Pace:
    """Time of a batch by its tokens, interpolated between the sizes measured so far.

    Sizes up to each power of two have their own mean. Hours of single short texts therefore leave
    the mean of full batches unchanged, and a nearly full batch updates it. A batch much larger than
    all before is predicted to be fast: the first such batch corrects a prediction that is too
    short, whereas one that is too long would keep such batches from being admitted.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._most = max_batch_tokens
        self._sizes: dict[int, _Size] = {}
        self._points: list[tuple[float, float]] = []
        """Mean tokens and seconds of each size, both ascending."""

    def account(self, tokens: int, seconds: float) -> None:
        """Record the tokens of a batch and the seconds that a worker computed it."""
        size = self._sizes.setdefault((tokens - 1).bit_length(), _Size())
        size.batches += 1
        weight = max(WEIGHT, 1 / size.batches)
        size.tokens += weight * (tokens - size.tokens)
        size.seconds += weight * (seconds - size.seconds)
        # more tokens never take less: isotonic regression by pooling adjacent violators
        pools: list[tuple[list[float], float, float]] = []
        for _, mean in sorted(self._sizes.items()):
            sizes, pooled, number = [mean.tokens], mean.seconds, min(mean.batches, 1 / WEIGHT)
            while pools and pools[-1][1] > pooled:
                fewer, longer, more = pools.pop()
                pooled = (pooled * number + longer * more) / (number + more)
                sizes, number = fewer + sizes, number + more
            pools.append((sizes, pooled, number))
        self._points = [(one, pooled) for sizes, pooled, _ in pools for one in sizes]

    def relax(self) -> None:
        """Reduce all predictions a little, as no batch comes to correct them."""
        for size in self._sizes.values():
            size.seconds *= 1 - RELAXING
        self._points = [(tokens, seconds * (1 - RELAXING)) for tokens, seconds in self._points]

    def predict(self, tokens: int) -> float:
        """Return the predicted seconds of a worker for some tokens, in batches of maximum size."""
        points, seconds = self._points, 0.0
        full, last = divmod(tokens, self._most)
        for batches, size in ((full, self._most), (1, last)) if points else ():
            if not batches * size:
                continue
            within = min(max(size, points[0][0]), 2 * points[-1][0])
            above = bisect.bisect(points, (within, math.inf), 1, max(1, len(points) - 1))
            (x0, y0), (x1, y1) = points[above - 1], points[min(above, len(points) - 1)]
            seconds += batches * (y0 + (y1 - y0) * (within - x0) / (x1 - x0 or 1))
        return seconds


class Margin:
    """Ratio of actual to predicted seconds of requests: its mean, and its mean deviation.

    The bound is that of TCP's retransmission timer (RFC 6298), with two deviations.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        """Factor ≥ 1 by which predictions are multiplied, so that most requests end in time."""
        self._set(1.0, 0.0)

    def account(self, predicted: float, seconds: float) -> None:
        """Record the predicted and the actual seconds of a request."""
        if predicted >= SHORTEST_PREDICTION:
            error = min(seconds / predicted, LARGEST_RATIO) - self._mean
            deviation = self._deviation + WEIGHT * (abs(error) - self._deviation)
            self._set(self._mean + WEIGHT * error, deviation)

    def relax(self) -> None:
        """Move the ratio towards 1 after a refusal, as no request comes to correct it."""
        self._set(self._mean + RELAXING * (1 - self._mean), self._deviation * (1 - RELAXING))

    def _set(self, mean: float, deviation: float) -> None:
        self._mean, self._deviation = mean, deviation
        self.factor = max(1.0, mean + 2 * deviation)


class Congestion:
    """Detector of a standing queue of a lane, by the predicted waits of its requests."""

    def __init__(self, target_seconds: float = math.inf) -> None:
        self.standing = False
        self._target = target_seconds
        self._shortest = 0.0
        """Shortest predicted wait of the interval."""
        self._ends = -math.inf
        """`time.monotonic()` at the end of the interval."""

    def most_seconds(self, wait: float, patience: float, now: float) -> float:
        """Return the longest wait for which a request is admitted, after recording its `wait`.

        `patience` is its longest wait by its own deadline and the queue's limit, `now` is
        `time.monotonic()`.
        """
        if now >= self._ends:
            self.standing = self._shortest > self._target
            self._shortest, self._ends = wait, now + INTERVAL_SECONDS
        self._shortest = min(self._shortest, wait)
        if wait <= self._target:
            self.standing = False
        return min(patience, 2 * self._target) if self.standing else patience
