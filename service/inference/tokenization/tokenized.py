"""A tokenised text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from model.artifact.sentence import SentenceConfig
from service.engines.contract import Ids

TOKEN_BYTES, TEXT_BYTES = 40, 1024
"""Bytes of memory of a tokenised text: of each token, and of the objects around them."""
UNKNOWN_SHARE = 10
"""A text is mostly unknown once more than one token in this many is the unknown token."""


Places = NDArray[np.int32]


class SharedNames:
    """Names of tokens, one string for all texts in which a token occurs.

    A name that is new when as many are known as the vocabulary has is left as it is: some models
    name an unknown token by its characters.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[str, str] = {}

    def share(self, names: Sequence[str]) -> list[str]:
        """Return equal names, each one string with those returned before."""
        known = self._known
        if len(known) < self._size:
            return [known.setdefault(name, name) for name in names]
        return [known.get(name, name) for name in names]


def places_of(offsets: Sequence[tuple[int, int]]) -> Places:
    """Return offsets as an array `[S, 2]`."""
    flat = np.fromiter(chain.from_iterable(offsets), np.int32, 2 * len(offsets))
    return flat.reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """One text as the encoder sees it, and how it maps back to the caller's string."""

    tokens: list[str]
    """Names of the tokens, which all texts share; see `SharedNames`."""
    input_ids: Ids
    """`[S]`."""
    segment_ids: Ids
    """`[S]`."""
    places: Places
    """`[S, 2]`: `offsets` as an array."""
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

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Start and end of each token in code points of its own segment of the caller's string.

        (0, 0) for special tokens and for the tokens of a prompt.
        """
        return list(zip(*self.places.T.tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the text holds."""
        return TEXT_BYTES + TOKEN_BYTES * len(self.input_ids)

    def first_pooled(self, sentence: SentenceConfig) -> int:
        """The first token that pooling counts: those of a prompt may not."""
        if sentence.include_prompt:
            return 0
        return min(self.prompt_tokens, len(self.input_ids) - 1)
