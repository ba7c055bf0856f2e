"""Tokens that continue a word, as transformers' TokenClassificationPipeline tells them."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import cast

from tokenizers import Tokenizer
from tokenizers.models import Unigram

from service.engines.contract import Ids
from service.inference.tokenization.excerpt import Offset

_USUAL_NAMES = {"<unk>", "[UNK]"}
"""Of the unknown token in vocabularies whose model has none, as those of bytes."""


class Subwords:
    """The words of a text by its tokens.

    Where the vocabulary marks pieces that continue a word, as WordPiece does with ##, a token
    continues one if it is not as long as the characters that it stands for; elsewhere if no space
    parts it from the character before. The unknown token begins a word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
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

    @functools.cached_property
    def _unknown(self) -> frozenset[int]:
        """Ids of the unknown token, which a Unigram model tells in its JSON alone."""
        added = self._tokenizer.get_added_tokens_decoder()
        special = {index: token.content for index, token in added.items() if token.special}
        found = {index for index, content in special.items() if content in _USUAL_NAMES}
        model = self._tokenizer.model
        index: int | None = None
        if isinstance(model, Unigram):
            index = json.loads(self._tokenizer.to_str())["model"]["unk_id"]
        elif model.unk_token is not None:
            index = self._tokenizer.token_to_id(model.unk_token)
        return frozenset(found if index is None else {*found, index})
