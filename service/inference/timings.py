"""The time that a request's steps take, and the notices about its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.inference.notices import NO_NOTICES, Notices
from service.scheduler.submission import TaskResult


@dataclass
class Timings:
    """Seconds of each step of a request, one after the other; of a streamed reply, so far.

    The notices stand here because they go to the same place: the headers of every reply.
    """

    tokens: int
    """Tokens of all texts."""
    began: float
    """`time.monotonic()` when the first text was about to be tokenised."""
    tokenization_seconds: float
    queue_seconds: float = 0.0
    inference_seconds: float = 0.0
    notices: Notices = NO_NOTICES

    def __add__(self, other: Timings) -> Timings:
        """Of two parts of a request that went one after the other."""
        return Timings(
            self.tokens + other.tokens,
            self.began,
            self.tokenization_seconds + other.tokenization_seconds,
            self.queue_seconds + other.queue_seconds,
            self.inference_seconds + other.inference_seconds,
            self.notices + other.notices,
        )

    def add(self, results: Sequence[TaskResult]) -> None:
        """Count tasks that went side by side: the longest of each step."""
        self.queue_seconds += max(result.queue_seconds for result in results)
        self.inference_seconds += max(result.inference_seconds for result in results)
