"""Timings of a request's steps, and the warnings about its texts."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from service.inference.text_warnings import NO_WARNINGS, Warnings
from service.scheduler.queue import Slot


@dataclass
class Timings:
    """Seconds of each consecutive step of a request; for a streamed reply, so far.

    Warnings are included because they also go to the headers of every reply.
    """

    tokens: int
    """Number of tokens of all texts."""
    began: float
    """Start of tokenisation, by `time.monotonic()`."""
    tokenization_seconds: float
    """Seconds of tokenisation, or of the preprocessing of pictures."""
    queue_seconds: float = 0.0
    inference_seconds: float = 0.0
    warnings: Warnings = NO_WARNINGS

    def __add__(self, other: Timings) -> Timings:
        """Add the timings of two consecutive parts of a request."""
        return Timings(
            self.tokens + other.tokens,
            self.began,
            self.tokenization_seconds + other.tokenization_seconds,
            self.queue_seconds + other.queue_seconds,
            self.inference_seconds + other.inference_seconds,
            self.warnings + other.warnings,
        )

    @classmethod
    def beside(cls, parts: Sequence[Timings]) -> Timings:
        """Return the timings of parts that ran at the same time, with the longest of each step."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            sum(part.tokens for part in parts),
            min(part.began for part in parts),
            max(part.tokenization_seconds for part in parts),
            max(part.queue_seconds for part in parts),
            max(part.inference_seconds for part in parts),
            functools.reduce(operator.add, (part.warnings for part in parts)),
        )

    def add(self, results: Sequence[Slot[object]]) -> None:
        """Add concurrent tasks, with the longest time of each step."""
        queue_seconds = inference_seconds = 0.0
        for result in results:
            queue_seconds = max(queue_seconds, result.queue_seconds)
            inference_seconds = max(inference_seconds, result.inference_seconds)
        self.queue_seconds += queue_seconds
        self.inference_seconds += inference_seconds
