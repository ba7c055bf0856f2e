"""Tokens that continue a word, by the rules of transformers' TokenClassificationPipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from tokenizers import Tokenizer

from service.engines.contract import Ids
from service.inference.tokenization.truncation import Offset


class Subwords:
    """Detector of tokens that continue a word.

    If the vocabulary marks such tokens, as WordPiece does with ##, a token continues a word if its
    name is longer or shorter than its characters in the text. Otherwise it does if there is no
    space between it and the previous character. The unknown token always begins a word.
    """

    def __init__(self, tokenizer: Tokenizer, unknown_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._unknown = unknown_ids
        self._marked = bool(getattr(tokenizer.model, "continuing_subword_prefix", None))

    def continuing(self, text: str, ids: Ids, offsets: Sequence[Offset]) -> Iterator[bool]:
        """Yield for each token whether it continues the previous token's word.

        Args:
            text: text of the client.
            ids: token ids `[S]`.
            offsets: start and end of each token in the text.

        """
        for index, (start, end) in zip(ids.tolist(), offsets, strict=True):
            if index in self._unknown:
                yield False
            elif self._marked:
                token = cast(str, self._tokenizer.id_to_token(index))
                yield len(token) != end - start
            else:
                yield start > 0 and " " not in text[start - 1 : start + 1]
