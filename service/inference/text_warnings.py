"""Counts of a request's texts that were truncated, lack a prompt, or have many unknown tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.inference.tokenization.text import Text


@dataclass(frozen=True, slots=True)
class Warnings:
    """Counts of a request's texts whose vectors the caller may not expect."""

    truncated: int = 0
    """Number of truncated texts."""
    prompt_missing: int = 0
    """Number of texts without a prompt, if the checkpoint has prompts but no default prompt."""
    unknown_tokens: int = 0
    """Number of texts in which over a tenth of the tokens are the unknown token."""

    @classmethod
    def of(cls, texts: Sequence[Text], prompt_missing: int = 0) -> Warnings:
        """Return the warnings about tokenised texts.

        Args:
            texts: texts of a request, as the model gets them.
            prompt_missing: number of texts that lack a prompt.

        """
        truncated = unknown = 0
        for text in texts:
            truncated += text.truncated
            unknown += text.mostly_unknown
        if not (truncated or prompt_missing or unknown):
            return NO_WARNINGS
        return cls(truncated, prompt_missing, unknown)

    def __add__(self, other: Warnings) -> Warnings:
        """Add the counts of two parts of a request."""
        return Warnings(
            self.truncated + other.truncated,
            self.prompt_missing + other.prompt_missing,
            self.unknown_tokens + other.unknown_tokens,
        )

    def counts(self) -> dict[str, int]:
        """Return the non-zero counts by name."""
        if self is NO_WARNINGS:
            return {}
        return {name: getattr(self, name) for name in MEANINGS if getattr(self, name)}

    def headers(self) -> dict[str, str]:
        """Return a reply header for each non-zero count."""
        return {HEADERS[name]: str(count) for name, count in self.counts().items()}

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> Warnings:
        """Parse the counts from the headers of a reply.

        Raises:
            ValueError: a header is not a number.

        """
        return cls(**{name: int(headers.get(header) or 0) for name, header in HEADERS.items()})

    def sentences(self) -> list[str]:
        """Return a sentence for each non-zero count."""
        counts = self.counts()
        return [
            f"{count} {'text was' if count == 1 else 'texts were'} {MEANINGS[name]}"
            for name, count in counts.items()
        ]


MEANINGS = {
    "truncated": "cut to the most tokens",
    "prompt_missing": "computed without a prompt, though the model names prompts",
    "unknown_tokens": "computed with more than a tenth of unknown tokens",
}
HEADERS = {name: f"x-{name.replace('_', '-')}" for name in MEANINGS}
"""Name of a count → reply header."""
NO_WARNINGS = Warnings()
