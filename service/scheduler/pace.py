"""The time that batches take, estimated from the last ones, and the error of such predictions."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

WEIGHT = 0.1
"""Weight of the last batch, or request, in all averages."""
RELAXING = 0.05
"""Share of a prediction that is forgotten with each request that is refused for it."""
SHORTEST_PREDICTION, LARGEST_RATIO = 0.1, 3.0
"""Predictions of fewer seconds say nothing of their errors; a larger error counts as this one."""


@dataclass
class _Size:
    """Batches of about one size."""

    batches: int = 0
    tokens: float = 0.0
    """Mean tokens of a batch."""
    seconds: float = 0.0
    """Mean seconds of a batch."""


class Pace:
    """The time of a batch by its tokens, between the sizes that there were.

    Sizes up to each power of two keep a mean of their own, so that hours of single short texts do
    not unteach what a full batch takes, and one that is nearly full teaches it. What is much larger
    than any yet counts as quick: a prediction that is too short is mended by the first such batch,
    one that is too long would keep it away.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._points: list[tuple[float, float]] = []
        """Tokens and seconds of each size; both ascending."""

    def account(self, tokens: int, seconds: float) -> None:
        """A batch of so many tokens took a worker so long."""
        size = self._sizes.setdefault((tokens - 1).bit_length(), _Size())
        size.batches += 1
        weight = max(WEIGHT, 1 / size.batches)
        size.tokens += weight * (tokens - size.tokens)
        size.seconds += weight * (seconds - size.seconds)
        self._points, longest = [], 0.0
        for _, each in sorted(self._sizes.items()):
            longest = max(longest, each.seconds)  # more tokens never take less
            self._points.append((each.tokens, longest))

    def relax(self) -> None:
        """Nobody comes to show that the predictions are right: trust them a little less."""
        for size in self._sizes.values():
            size.seconds *= 1 - RELAXING
        self._points = [(tokens, seconds * (1 - RELAXING)) for tokens, seconds in self._points]

    def predict(self, tokens: int, max_batch_tokens: int) -> float:
        """Seconds of a worker for so many tokens, in batches as large as they may be."""
        full, rest = divmod(tokens, max_batch_tokens)
        return full * self._batch(max_batch_tokens) + (self._batch(rest) if rest else 0.0)

    def _batch(self, tokens: int) -> float:
        points = self._points
        if not points:
            return 0.0
        above = bisect.bisect(points, (tokens, math.inf))
        if above == 0 or len(points) == 1:
            return points[0][1]
        (x0, y0), (x1, y1) = points[above - 1 : above + 1] if above < len(points) else points[-2:]
        return y0 + (y1 - y0) * (min(tokens, 2 * points[-1][0]) - x0) / (x1 - x0)


@dataclass
class Margin:
    """How much longer requests take than was predicted: mean ratio, and its mean deviation.

    The bound is that of TCP's retransmission timer (RFC 6298), with two deviations.
    """

    mean: float = 1.0
    deviation: float = 0.0

    def account(self, predicted: float, seconds: float) -> None:
        """A request for which so many seconds were predicted took these."""
        if predicted >= SHORTEST_PREDICTION:
            error = min(seconds / predicted, LARGEST_RATIO) - self.mean
            self.deviation += WEIGHT * (abs(error) - self.deviation)
            self.mean += WEIGHT * error

    def relax(self) -> None:
        """A request was refused, and so cannot show whether it would have taken longer."""
        self.deviation *= 1 - RELAXING
        self.mean += RELAXING * (1 - self.mean)

    @property
    def factor(self) -> float:
        """What a prediction is multiplied by, for nearly all requests to end within it; ≥ 1."""
        return max(1.0, self.mean + 2 * self.deviation)
