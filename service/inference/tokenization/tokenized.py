"""A tokenised text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.artifact.sentence import SentenceConfig
from service.engines.contract import Ids

UNKNOWN_SHARE = 10
"""A text is mostly unknown once more than one token in this many is the unknown token."""


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
    unknown: NDArray[np.bool_]
    """`[S]`: whether a token of the text itself, not of its prompt, is the unknown token."""

    @property
    def mostly_unknown(self) -> bool:
        """Whether more than a tenth of the text's own tokens are the unknown token."""
        count = int(np.count_nonzero(self.unknown))
        if not count:
            return False
        return UNKNOWN_SHARE * count > len(self.unknown) - sum(self.special_tokens_mask)

    def first_pooled(self, sentence: SentenceConfig) -> int:
        """The first token that pooling counts: those of a prompt may not."""
        if sentence.include_prompt:
            return 0
        return min(self.prompt_tokens, len(self.input_ids) - 1)
