"""Token ids that a client sends in place of a text, decoded or used as model inputs.

Used as model inputs, ids with all special tokens at their beginning and end are left unchanged. Ids
without any of these tokens get them added. Ids with some of them are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.errors import Unprocessable
from service.inference.tokenization.file_tokenizer import FileTokenizer
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.truncation import Direction, encode


class IdReader:
    """Decoder of token ids, which also adds the tokenizer's special tokens to them."""

    def __init__(self, tokenizer: FileTokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.whole.get_added_tokens_decoder().items()
        self._special = frozenset(index for index, token in added if token.special)
        encoding = tokenizer.whole.encode("a")
        of_text = [place for place, mask in enumerate(encoding.special_tokens_mask) if not mask]
        first, last = (of_text[0], of_text[-1] + 1) if of_text else (1, 1)
        ids, segments = encoding.ids, encoding.type_ids
        self._opening: list[int] = ids[:first]
        self._closing: list[int] = ids[last:]
        self._opening_segments: list[int] = segments[:first]
        self._closing_segments: list[int] = segments[last:]
        self._segment: int = segments[of_text[0]] if of_text else 0

    def decode(self, name: str, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids."""
        size = self._tokenizer.size
        for token in ids:
            if not 0 <= token < size:
                raise Unprocessable(f"{name} has the token id {token}: ids are 0 … {size - 1}")
        text: str = self._tokenizer.whole.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def check_encoded_again(self, name: str, ids: Sequence[int], text: str) -> None:
        """Raise if the tokens of a decoded text differ from its ids, with or without special ones.

        Raises:
            Unprocessable: the ids differ.

        """
        again = self._tokenizer.ids(encode(self._tokenizer.whole, text, special_tokens=False))
        if again not in (list(ids), [token for token in ids if token not in self._special]):
            raise Unprocessable(
                f"{name}: the token ids, decoded and encoded again, are others: send the text"
            )

    def complete(
        self, name: str, given: Sequence[int], most: int | None, direction: Direction
    ) -> TokenizedText:
        """Return a client's ids as a tokenised text with all special tokens.

        Args:
            name: name of the ids in error messages.
            given: token ids.
            most: maximum number of tokens, special ones included, to which the ids are truncated;
                None for no truncation.
            direction: side that is truncated.

        """
        self.decode(name, given, skip_special_tokens=False)
        own = self._without_special(name, list(given))
        room = None if most is None else most - len(self._opening) - len(self._closing)
        truncated = room is not None and len(own) > room
        if room is not None and truncated:
            own = own[:room] if direction == "right" else own[len(own) - room :]
        opening, closing = self._opening, self._closing
        ids = [*opening, *own, *closing]
        input_ids = np.array(ids, np.int64)
        names = [self._tokenizer.whole.id_to_token(token) or "" for token in ids]
        special = [*[1] * len(opening), *[0] * len(own), *[1] * len(closing)]
        segments = [*self._opening_segments, *[self._segment] * len(own), *self._closing_segments]
        return TokenizedText(
            tokens=self._tokenizer.names.share(names),
            input_ids=input_ids,
            segment_ids=np.array(segments, np.int64),
            places=np.zeros((len(ids), 2), np.int32),
            truncated=truncated,
            prompt_tokens=0,
            special_tokens_mask=bytes(special),
            unknown=self._tokenizer.is_unknown(input_ids, special),
        )

    def _without_special(self, name: str, given: list[int]) -> list[int]:
        """Return ids without the special tokens at their beginning and end."""
        opening, closing = self._opening, self._closing
        end = len(given) - len(closing)
        if end >= len(opening) and given[: len(opening)] == opening and given[end:] == closing:
            return given[len(opening) : end]
        if {*opening, *closing}.isdisjoint(given):
            return given
        raise Unprocessable(
            f"{name}: the token ids have some special tokens of the model and not all: begin them "
            f"with {opening} and end them with {closing}, or leave both out and they are added"
        )
