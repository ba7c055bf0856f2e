"""Timings of a request's steps, and counts of its texts whose vectors may be unexpected."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass

from service.inference.tokenization.text import Text
from service.scheduler.queue import Slot

MEANINGS = {
    "truncated": "cut to the most tokens",
    "prompt_missing": "computed without a prompt, though the model names prompts",
    "unknown_tokens": "computed with more than a tenth of unknown tokens",
}
HEADERS = {name: f"x-{name.replace('_', '-')}" for name in MEANINGS}
"""Name of a count → reply header."""


@dataclass(frozen=True, slots=True)
class Warnings:
    """Counts of a request's texts whose vectors the caller may not expect; see `MEANINGS`."""

    truncated: int = 0
    prompt_missing: int = 0
    unknown_tokens: int = 0

    @classmethod
    def of(cls, texts: Sequence[Text], prompt_missing: int = 0) -> Warnings:
        """Return the warnings about tokenised texts, of which `prompt_missing` lack a prompt."""
        truncated = unknown = 0
        for text in texts:
            truncated += text.truncated
            unknown += text.mostly_unknown
        if not (truncated or prompt_missing or unknown):
            return NO_WARNINGS
        return cls(truncated, prompt_missing, unknown)

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> Warnings:
        """Return the counts in the headers of a reply; none if a proxy has replaced the headers."""
        try:
            return cls(**{name: int(headers.get(header) or 0) for name, header in HEADERS.items()})
        except ValueError:
            return NO_WARNINGS

    def __add__(self, other: Warnings) -> Warnings:
        """Add the counts of two parts of a request."""
        return Warnings(*map(operator.add, astuple(self), astuple(other)))

    def counts(self) -> dict[str, int]:
        """Return the non-zero counts by name."""
        if self is NO_WARNINGS:  # as for most requests
            return {}
        return {name: count for name in MEANINGS if (count := getattr(self, name))}

    def headers(self) -> dict[str, str]:
        """Return a reply header for each non-zero count."""
        return {HEADERS[name]: str(count) for name, count in self.counts().items()}

    def sentences(self) -> list[str]:
        """Return a sentence for each non-zero count."""
        return [
            f"{count} {'text was' if count == 1 else 'texts were'} {MEANINGS[name]}"
            for name, count in self.counts().items()
        ]


NO_WARNINGS = Warnings()


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
        return self._of([self, other], sum)

    @classmethod
    def beside(cls, parts: Sequence[Timings]) -> Timings:
        """Return the timings of parts that ran at the same time, with the longest of each step."""
        return parts[0] if len(parts) == 1 else cls._of(parts, max)

    @classmethod
    def _of(cls, parts: Sequence[Timings], step: Callable[[list[float]], float]) -> Timings:
        return cls(
            sum(part.tokens for part in parts),
            min(part.began for part in parts),
            step([part.tokenization_seconds for part in parts]),
            step([part.queue_seconds for part in parts]),
            step([part.inference_seconds for part in parts]),
            sum((part.warnings for part in parts), NO_WARNINGS),
        )

    def add(self, results: Sequence[Slot[object]]) -> None:
        """Add concurrent tasks, with the longest time of each step."""
        queue_seconds = inference_seconds = 0.0
        for result in results:
            queue_seconds = max(queue_seconds, result.queue_seconds)
            inference_seconds = max(inference_seconds, result.inference_seconds)
        self.queue_seconds += queue_seconds
        self.inference_seconds += inference_seconds
