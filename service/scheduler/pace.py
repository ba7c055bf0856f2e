"""The time that batches take, estimated from the last ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

WEIGHT = 0.1
"""Weight of the last batch in all averages."""


@dataclass
class Pace:
    """A batch takes `a + b · tokens` seconds: least squares over the last batches.

    With a cost a token alone, a few batches of one short text each would make a long queue look as
    if it took minutes.
    """

    tokens: float = 0.0
    """Mean tokens of a batch."""
    seconds: float = 0.0
    """Mean seconds of a batch; 0 before the first."""
    variance: float = 0.0
    """Variance of the tokens."""
    covariance: float = 0.0
    """Covariance of tokens and seconds."""

    def account(self, tokens: int, seconds: float) -> None:
        """A batch of so many tokens took a worker so long."""
        weight = WEIGHT if self.seconds else 1.0
        more_tokens, more_seconds = tokens - self.tokens, seconds - self.seconds
        self.tokens += weight * more_tokens
        self.seconds += weight * more_seconds
        self.variance = (1 - weight) * (self.variance + weight * more_tokens**2)
        self.covariance = (1 - weight) * (self.covariance + weight * more_tokens * more_seconds)

    def predict(self, tokens: int, max_batch_tokens: int) -> float:
        """Seconds of a worker for so many tokens, in batches as large as they may be."""
        if not self.seconds:
            return 0.0
        each = self.covariance / self.variance if self.variance else 0.0
        each = min(max(each, 0.0), self.seconds / self.tokens)  # neither part is below 0
        start = self.seconds - each * self.tokens
        return start * math.ceil(tokens / max_batch_tokens) + each * tokens
