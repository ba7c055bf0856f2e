"""A tokenised text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model.artifact.sentence import SentenceConfig
from service.engines.contract import Ids


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the encoder sees it, and how it maps back to the caller's string."""

    tokens: list[str]
    input_ids: Ids
    """`[S]`."""
    segment_ids: Ids
    """`[S]`."""
    offsets: list[tuple[int, int]]
    """Code points in the token's own segment of the caller's string; (0, 0) for special tokens
    and for those of a prompt."""
    truncated: bool
    prompt_tokens: int
    """Leading tokens that a pooling without the prompt leaves out; 0 without a prompt."""
    special_tokens_mask: Sequence[int]
    """1 for the tokens that the tokenizer put around the text, and for those of a prompt."""

    def first_pooled(self, sentence: SentenceConfig) -> int:
        """The first token that pooling counts: those of a prompt may not."""
        if sentence.include_prompt:
            return 0
        return min(self.prompt_tokens, len(self.input_ids) - 1)
