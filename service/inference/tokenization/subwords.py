"""Tokens that continue a word, as transformers' TokenClassificationPipeline tells them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from tokenizers import Tokenizer

from service.engines.contract import Ids
from service.inference.tokenization.excerpt import Offset


class Subwords:
    """The words of a text by its tokens.

    Where the vocabulary marks pieces that continue a word, as WordPiece does with ##, a token
    continues one if it is not as long as the characters that it stands for; elsewhere if no space
    parts it from the character before. The unknown token begins a word.
    """

    def __init__(self, tokenizer: Tokenizer, unknown_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._unknown = unknown_ids
        self._marked = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))

    def continuing(self, text: str, ids: Ids, offsets: Sequence[Offset]) -> Iterator[bool]:
        """Whether each token continues the word of the one before.

        Args:
            text: the caller's.
            ids: `[S]`, its tokens.
            offsets: characters that each token stands for.

        """
        for index, (start, end) in zip(ids.tolist(), offsets, strict=True):
            if index in self._unknown:
                yield False
            elif self._marked:
                token = cast(str, self._tokenizer.id_to_token(index))
                yield len(token) != end - start
            else:
                yield start > 0 and " " not in text[start - 1 : start + 1]
