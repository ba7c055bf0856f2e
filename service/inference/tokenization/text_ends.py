"""Last tokens of the texts of CLIP and SigLIP: texts are cut after the end token, or padded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tokenizers import Tokenizer

from model.artifact.sentence import SentenceConfig
from service.inference.tokenization.tokenized import TokenizedText


class TextEnds:
    """Completion of tokenised texts as an artifact's `SentenceConfig` asks for."""

    def __init__(self, sentence: SentenceConfig, tokenizer: Tokenizer) -> None:
        self._end = sentence.end_token_id
        self._padding = sentence.pad_token_id
        named = None if self._padding is None else tokenizer.id_to_token(self._padding)
        self._name = named or ""
        self.length = 0 if self._padding is None else sentence.max_length
        """Number of tokens of every text; 0 if texts are not padded."""

    def complete(self, text: TokenizedText) -> TokenizedText:
        """Return a text without tokens after its first end token, and with padding.

        Padding tokens are special tokens that other tokens attend to. A text that is cut counts as
        truncated: its vector is the same, as later tokens cannot change the state of the end token.
        """
        if self._end is not None:
            (ends,) = np.nonzero(text.input_ids[:-1] == self._end)
            if len(ends):
                text = _first(text, int(ends[0]) + 1)
        return self._padded(text) if self.length else text

    def _padded(self, text: TokenizedText) -> TokenizedText:
        count = max(0, self.length - len(text.input_ids))
        ids = np.full(count, self._padding, np.int64)
        return replace(
            text,
            tokens=[*text.tokens, *[self._name] * count],
            input_ids=np.concatenate([text.input_ids, ids]),
            segment_ids=np.concatenate([text.segment_ids, np.zeros(count, np.int64)]),
            places=np.concatenate([text.places, np.zeros((count, 2), np.int32)]),
            special_tokens_mask=bytes([*text.special_tokens_mask, *[1] * count]),
            unknown=np.concatenate([text.unknown, np.zeros(count, bool)]),
            padding_tokens=count,
            pad=self._padded,
        )


def without_padding(text: TokenizedText) -> TokenizedText:
    """Return a text without its padding tokens."""
    whole = len(text.input_ids) - text.padding_tokens
    return replace(_first(text, whole), truncated=text.truncated, padding_tokens=0, pad=None)


def _first(text: TokenizedText, count: int) -> TokenizedText:
    """Return the first tokens of a text, as truncated."""
    return replace(
        text,
        tokens=text.tokens[:count],
        input_ids=text.input_ids[:count],
        segment_ids=text.segment_ids[:count],
        places=text.places[:count],
        special_tokens_mask=text.special_tokens_mask[:count],
        unknown=text.unknown[:count],
        truncated=True,
    )
