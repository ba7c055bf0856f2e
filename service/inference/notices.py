"""Counts of a request's texts that were cut, lack a prompt, or have many unknown tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.inference.tokenization.tokenizer import TokenizedText


@dataclass(frozen=True, slots=True)
class Notices:
    """Numbers of a request's texts whose vectors may not be what the caller expects."""

    truncated: int = 0
    """Texts that were cut."""
    prompt_missing: int = 0
    """Texts without a prompt, of a checkpoint that names prompts and no default."""
    unknown_tokens: int = 0
    """Texts in which more than a tenth of the tokens are the unknown token."""

    @classmethod
    def of(cls, texts: Sequence[TokenizedText], prompt_missing: int = 0) -> Notices:
        """Return the notices about tokenised texts.

        Args:
            texts: of a request, as the model is given them.
            prompt_missing: number of the texts that lack a prompt.

        """
        truncated = sum(text.truncated for text in texts)
        return cls(truncated, prompt_missing, sum(text.mostly_unknown for text in texts))

    def __add__(self, other: Notices) -> Notices:
        """Return the notices about the texts of both parts of a request."""
        return Notices(
            self.truncated + other.truncated,
            self.prompt_missing + other.prompt_missing,
            self.unknown_tokens + other.unknown_tokens,
        )

    def counts(self) -> dict[str, int]:
        """Return the numbers that are not 0, by their names."""
        return {name: getattr(self, name) for name in MEANINGS if getattr(self, name)}

    def headers(self) -> dict[str, str]:
        """Return a header of a reply for each number that is not 0."""
        return {HEADERS[name]: str(count) for name, count in self.counts().items()}

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> Notices:
        """Return the numbers that the headers of a reply have.

        Raises:
            ValueError: a header is not a number.

        """
        return cls(**{name: int(headers.get(header) or 0) for name, header in HEADERS.items()})

    def sentences(self) -> list[str]:
        """Return a sentence for each number that is not 0."""
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
"""Headers of a reply by the names of the numbers."""
NO_NOTICES = Notices()
