"""A prompt before a text: its tokens, and offsets without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from model.artifact.sentence import SentenceConfig
from service.errors import Unprocessable
from service.inference.tokenization.excerpt import Offset
from service.inference.tokenization.inputs import Text


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prefix of texts."""

    text: str
    tokens: int
    """Of the prompt alone, special tokens at its beginning included."""


NO_PROMPT = Prompt("", 0)


class Prompts:
    """The prompts that a checkpoint names."""

    def __init__(self, sentence: SentenceConfig, tokenizer: Tokenizer) -> None:
        self._sentence = sentence
        self._named = {
            name: Prompt(prompt, prompt_length(tokenizer, prompt))
            for name, prompt in sentence.prompts.items()
        }

    def named(self, name: str | None) -> Prompt:
        """Return the prompt of a name, or the default when None; an empty name is for no prompt.

        Raises:
            Unprocessable: the checkpoint names no such prompt, or none at all.

        """
        if name is None:
            name = self._sentence.default_prompt_name
        if name is None or (name == "" and self._named):
            return NO_PROMPT
        try:
            return self._named[name]
        except KeyError:
            known = ", ".join(sorted(self._named)) or "none"
            raise Unprocessable(f"unknown prompt_name; this model names: {known}") from None

    def lacking(self, name: str | None) -> bool:
        """Return whether a request that names this prompt, or None, is likely to lack one.

        A default of the checkpoint is a prompt, and an empty name asks for none on purpose.
        """
        if name is not None or self._sentence.default_prompt_name is not None:
            return False
        return any(prompt.text for prompt in self._named.values())


def prompt_length(tokenizer: Tokenizer, prompt: str) -> int:
    """Return the tokens of a prompt without a special one at its end, as sentence-transformers."""
    special = tokenizer.encode(prompt).special_tokens_mask if prompt else []
    return len(special) - bool(special and special[-1])


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
