"""Warnings and counts of texts that were truncated, lack a prompt, or have many unknown tokens.

The service sends them as headers of every reply (docs/api.md#headers).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

MEANINGS = {
    "truncated": "cut to the most tokens",
    "prompt_missing": "computed without a prompt, though the model names prompts",
    "unknown_tokens": "computed with more than a tenth of unknown tokens",
}


class TextWarning(UserWarning):
    """Warning about a text that may not be computed as its caller expects."""


@dataclass
class Warnings:
    """Counts of texts in all replies to a client so far."""

    truncated: int = 0
    """Number of truncated texts; `truncated` of a result identifies them."""
    prompt_missing: int = 0
    """Number of texts without a prompt, for a model that names prompts but no default."""
    unknown_tokens: int = 0
    """Number of texts in which more than a tenth of the tokens are the unknown token."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def note(self, headers: Mapping[str, str]) -> None:
        """Add the counts of a reply, and warn of each kind when it first occurs.

        Raises:
            ValueError: a header is not a number.

        """
        for name, meaning in MEANINGS.items():
            count = int(headers.get(f"x-{name.replace('_', '-')}", 0))
            if not count:
                continue
            with self._lock:
                first = not getattr(self, name)
                setattr(self, name, getattr(self, name) + count)
            if first:
                which = "text was" if count == 1 else "texts were"
                message = f"{count} {which} {meaning}; see client.warnings for all replies"
                warnings.warn(message, TextWarning, stacklevel=2)
