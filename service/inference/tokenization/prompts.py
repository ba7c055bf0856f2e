"""A prompt before a text: its tokens, and offsets without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Encoding

from service.inference.tokenization.excerpt import Offset
from service.inference.tokenization.inputs import Text


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prefix of texts."""

    text: str
    tokens: int
    """Of the prompt alone, special tokens at its beginning included."""


NO_PROMPT = Prompt("", 0)


def with_prompt(prompt: str, text: Text) -> Text:
    """A text, or the first of a pair, after a prompt."""
    return prompt + text if isinstance(text, str) else (prompt + text[0], text[1])


def without_prompt(
    encoding: Encoding, offsets: Sequence[Offset], prompt_length: int
) -> tuple[list[Offset], int]:
    """Offsets in the caller's string, and the number of tokens up to the prompt's last."""
    found, prompt_tokens = [], 0
    for index, (start, end) in enumerate(offsets):
        if encoding.sequence_ids[index] == 0:
            if end <= prompt_length:
                prompt_tokens = index + 1
            found.append((max(start - prompt_length, 0), max(end - prompt_length, 0)))
        else:
            found.append((start, end))
    return found, prompt_tokens
