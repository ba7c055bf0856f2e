"""Token ids that a client sends in place of a text, decoded or computed as they are.

Computed as they are, ids that begin and end with the special tokens that the tokenizer puts around
a text are taken as they are; ids without any of them get them; ids with some of them are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.errors import Unprocessable
from service.inference.tokenization.cutting import CuttingTokenizer
from service.inference.tokenization.excerpt import Direction
from service.inference.tokenization.tokenized import TokenizedText


class IdReader:
    """A tokenizer's ids as texts, and with the special tokens that it puts around a text."""

    def __init__(self, tokenizer: CuttingTokenizer) -> None:
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
        """Return the text of some ids.

        Args:
            name: of the ids in a refusal.
            ids: of the vocabulary.
            skip_special_tokens: whether special tokens are left out.

        Raises:
            Unprocessable: an id that no token has.

        """
        size = self._tokenizer.size
        for token in ids:
            if not 0 <= token < size:
                raise Unprocessable(f"{name} has the token id {token}: ids are 0 … {size - 1}")
        text: str = self._tokenizer.whole.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def check_encoded_again(self, name: str, ids: Sequence[int], text: str) -> None:
        """Refuse ids whose text has other ids; special tokens that the text lacks do not count.

        Raises:
            Unprocessable: the ids are others.

        """
        again = self._tokenizer.ids(self._tokenizer.whole.encode(text, add_special_tokens=False))
        if again not in (list(ids), [token for token in ids if token not in self._special]):
            raise Unprocessable(
                f"{name}: the token ids, decoded and encoded again, are others: send the text"
            )

    def complete(
        self, name: str, given: Sequence[int], most: int | None, direction: Direction
    ) -> TokenizedText:
        """Return a client's ids with the special tokens of the model around them.

        Args:
            name: of the ids in a refusal.
            given: the ids.
            most: tokens to which the ids are truncated, special ones included; None truncates
                nothing.
            direction: which side is truncated.

        Raises:
            Unprocessable: an id that no token has, or some of the special tokens and not all.

        """
        self.decode(name, given, skip_special_tokens=False)
        own = self._without_frame(name, list(given))
        room = None if most is None else most - len(self._opening) - len(self._closing)
        truncated = room is not None and len(own) > room
        if room is not None and truncated:
            own = own[:room] if direction == "right" else own[len(own) - room :]
        opening, closing = self._opening, self._closing
        found = [*opening, *own, *closing]
        input_ids = np.array(found, np.int64)
        names = [self._tokenizer.whole.id_to_token(token) or "" for token in found]
        segments = [*self._opening_segments, *[self._segment] * len(own), *self._closing_segments]
        return TokenizedText(
            tokens=self._tokenizer.names.share(names),
            input_ids=input_ids,
            segment_ids=np.array(segments, np.int64),
            places=np.zeros((len(found), 2), np.int32),
            truncated=truncated,
            prompt_tokens=0,
            special_tokens_mask=bytes([*[1] * len(opening), *[0] * len(own), *[1] * len(closing)]),
            unknown=self._tokenizer.is_unknown(input_ids),
        )

    def _without_frame(self, name: str, given: list[int]) -> list[int]:
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
