"""Tokenizer of one file of an artifact: whole texts, or texts truncated to a number of tokens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from model.artifact.access import reading
from model.artifact.tokenizer import read_tokenizer
from model.tokenization.vocabulary import BEYOND, model_ids, unknown_ids
from service.engines.contract import Ids
from service.errors import InputTooLong
from service.inference.tokenization.inputs import Text
from service.inference.tokenization.tokenized import SharedNames
from service.inference.tokenization.truncation import Cutter, Direction, Excerpt, NotCut


class FileTokenizer:
    """Tokenizer of an artifact's inputs, or of its targets."""

    def __init__(self, path: Path) -> None:
        """Read `tokenizer.json` or `target_tokenizer.json`.

        Raises:
            ArtifactError: the file cannot be read.

        """
        with reading(path):
            self.whole: Tokenizer = read_tokenizer(path)
        beyond = self.whole.token_to_id(BEYOND)
        self.size: int = self.whole.get_vocab_size() if beyond is None else beyond
        """Number of ids that the model knows, which are 0 … size − 1."""
        self.names = SharedNames(self.whole.get_vocab_size())
        self.unknown_ids = unknown_ids(self.whole)
        self._unknown = np.array(sorted(self.unknown_ids), np.int64)
        self._cutters: dict[tuple[Direction, int], Cutter] = {}
        self._lock = threading.Lock()

    def ids(self, encoding: Encoding) -> list[int]:
        """Return the model's input ids of a text."""
        return model_ids(self.whole, encoding)

    def is_unknown(self, ids: Ids) -> NDArray[np.bool_]:
        """Return for each id of `[S]` whether it belongs to the unknown token."""
        return np.isin(ids, self._unknown) if len(self._unknown) != 1 else ids == self._unknown

    def whole_texts(self, texts: Sequence[tuple[Text, bool]]) -> list[Excerpt]:
        """Tokenise texts without truncation.

        Args:
            texts: texts or pairs, each with whether to add special tokens.

        """
        if all(special for _, special in texts):
            return list(map(Excerpt, self.whole.encode_batch([text for text, _ in texts])))
        encode = self.whole.encode
        return [Excerpt(encode(text, add_special_tokens=special)) for text, special in texts]

    def cut_texts(
        self,
        texts: Sequence[tuple[Text, bool]],
        direction: Direction,
        max_tokens: int,
        names: Sequence[str],
    ) -> list[Excerpt]:
        """Tokenise texts, each truncated to a number of tokens.

        Args:
            texts: texts or pairs, each with whether to add special tokens.
            direction: side of the text that is truncated.
            max_tokens: maximum number of tokens, special tokens included.
            names: name of each text in error messages.

        Raises:
            InputTooLong: a text has too few words to find its truncation point.

        """
        cut = self._cutter(direction, max_tokens)
        excerpts = []
        for name, (text, special) in zip(names, texts, strict=True):
            try:
                excerpts.append(cut.encode(text, special_tokens=special))
            except NotCut as error:
                raise InputTooLong(f"{name} {error}") from None
        return excerpts

    def _cutter(self, direction: Direction, max_tokens: int) -> Cutter:
        with self._lock:
            if (direction, max_tokens) not in self._cutters:
                cutter = Cutter(self.whole, max_tokens, direction)
                self._cutters[direction, max_tokens] = cutter
            return self._cutters[direction, max_tokens]


def closing_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the special tokens that a tokenizer adds after a text."""
    encoding = tokenizer.encode("a")
    of_text = [place for place, mask in enumerate(encoding.special_tokens_mask) if not mask]
    ids: list[int] = encoding.ids[of_text[-1] + 1 if of_text else 1 :]
    return ids
