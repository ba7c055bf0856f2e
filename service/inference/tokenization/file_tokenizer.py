"""Tokenizer of one file of an artifact, with the model's ids and its truncating tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Encoding, Tokenizer

from model.artifact.access import reading
from model.artifact.integrity import sha256_of
from model.artifact.tokenizer import read_tokenizer
from model.tokenization.vocabulary import BEYOND, model_ids, unknown_ids
from service.engines.contract import Ids
from service.inference.tokenization.prompts import Prompt, without_prompt
from service.inference.tokenization.tokenized import SharedNames, TokenizedText, places_of
from service.inference.tokenization.truncation import Excerpt

_tokenizers: WeakValueDictionary[str, FileTokenizer] = WeakValueDictionary()
"""Tokenizers in use, by the SHA-256 of their file."""


class FileTokenizer:
    """Tokenizer of an artifact's inputs, or of its targets."""

    def __init__(self, path: Path) -> None:
        """Read `tokenizer.json` or `target_tokenizer.json`."""
        with reading(path):
            self.whole: Tokenizer = read_tokenizer(path)
        beyond = self.whole.token_to_id(BEYOND)
        self.size: int = self.whole.get_vocab_size() if beyond is None else beyond
        """Number of ids that the model knows, which are 0 … size − 1."""
        self.names = SharedNames(self.whole.get_vocab_size())
        self.unknown_ids = unknown_ids(self.whole)
        self._unknown = np.array(sorted(self.unknown_ids), np.int64)

    def ids(self, encoding: Encoding) -> list[int]:
        """Return the model's input ids of a text."""
        return model_ids(self.whole, encoding)

    def is_unknown(self, ids: Ids, special: ArrayLike) -> NDArray[np.bool_]:
        """Return for each id of `[S]` whether it is the unknown token, and no special one.

        CLIP's unknown token is the one that ends each text, too.
        """
        unknown = np.isin(ids, self._unknown) if len(self._unknown) != 1 else ids == self._unknown
        return unknown & ~np.asarray(special, bool) if unknown.any() else unknown

    def tokenized(
        self, excerpt: Excerpt, ids: Sequence[int], prompt: Prompt, *, cut_left: bool
    ) -> TokenizedText:
        """Return the tokenised text of an excerpt.

        Args:
            excerpt: tokens of a text and its prompt.
            ids: the model's ids of the kept tokens.
            prompt: prompt of the text.
            cut_left: whether the start of the text, with its prompt, was truncated.

        """
        encoding, offsets = excerpt.encoding, excerpt.offsets
        special = excerpt.of(encoding.special_tokens_mask)
        segments = excerpt.of(encoding.type_ids)
        prompt_tokens = 0
        if prompt.text:
            sequences = excerpt.of(encoding.sequence_ids)
            offsets, prompt_tokens = without_prompt(sequences, offsets, len(prompt.text))
            if not cut_left:
                prompt_tokens = min(prompt.tokens, len(ids))
            special = [1] * prompt_tokens + [*special[prompt_tokens:]]
        input_ids = np.array(ids, np.int64)
        if prompt.segment is not None or not any(segments):
            segment_ids = np.full(len(ids), prompt.segment or 0)
        else:
            segment_ids = np.array(segments)
        return TokenizedText(
            tokens=self.names.share(excerpt.of(encoding.tokens)),
            input_ids=input_ids,
            segment_ids=segment_ids,
            places=places_of(offsets),
            truncated=excerpt.truncated,
            prompt_tokens=prompt_tokens,
            special_tokens_mask=bytes(special),
            unknown=self.is_unknown(input_ids, special),
        )


def shared_tokenizer(path: Path) -> FileTokenizer:
    """Return the tokenizer of a file, which all files of the same content share while it is used.

    Reading a file holds Python's lock and so stops the event loop; versions of a model usually have
    the same tokenizer.
    """
    with reading(path):
        content = sha256_of(path)
    if shared := _tokenizers.get(content):
        return shared
    tokenizer = FileTokenizer(path)
    with reading(path):
        if sha256_of(path) == content:  # not changed while it was read
            _tokenizers[content] = tokenizer
    return tokenizer


def closing_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the special tokens that a tokenizer adds after a text."""
    encoding = tokenizer.encode("a")
    of_text = [place for place, mask in enumerate(encoding.special_tokens_mask) if not mask]
    ids: list[int] = encoding.ids[of_text[-1] + 1 if of_text else 1 :]
    return ids
