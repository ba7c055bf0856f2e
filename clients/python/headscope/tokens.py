"""Tokens of texts, without a forward pass: the call of `POST /tokenize`, and its result.

Notation: S tokens of a text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack, overload

from headscope.call import Call, CallFor, OnError, Raises, Returns, chained
from headscope.display import HeatMap, Shown, frame, short
from headscope.errors import Refused
from headscope.fields import TokenizeFields
from headscope.inputs import only_texts
from headscope.reading import check_count
from headscope.words import SPECIAL, Offset

if TYPE_CHECKING:
    from pandas import DataFrame

TOKEN_BYTES = 96
"""Estimated size of a token in JSON, in bytes."""


@dataclass(frozen=True, repr=False)
class Tokens(Shown):
    """Tokens of one text, of any length."""

    text: str
    """Text of the caller."""
    tokens: list[str]
    """Characters of each token, `[S]`; the name of a special token."""
    token_ids: list[int]
    offsets: list[Offset]
    """Code points in the text; `(0, 0)` for special tokens and a prompt's tokens."""
    special: list[bool]
    """Whether the tokenizer added the token around the text."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def to_pandas(self) -> DataFrame:
        """Return a table of the tokens, with their positions in the text.

        Raises:
            ImportError: pandas is not installed.

        """
        return frame(
            {
                "token": self.tokens,
                "id": self.token_ids,
                "start": [start for start, _ in self.offsets],
                "end": [end for _, end in self.offsets],
                "special": self.special,
            }
        )

    def _facts(self) -> list[str]:
        return [short(self.text), f"{len(self)} tokens"]

    def _repr_html_(self) -> str:
        return HeatMap(f"{len(self)} tokens", tuple(self.tokens), None).html()


@overload
def tokenize(
    inputs: str | Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[TokenizeFields]
) -> CallFor[list[Tokens]]: ...
@overload
def tokenize(
    inputs: str | Sequence[str], *, on_error: Returns, **fields: Unpack[TokenizeFields]
) -> CallFor[list[Tokens | Refused]]: ...
def tokenize(
    inputs: str | Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[TokenizeFields]
) -> CallFor[object]:
    """Return the tokens of texts, which may exceed the model's maximum length.

    Args:
        inputs: a text, or a list of texts.
        on_error: "return" to get the error of a refused input in the input's place.
        fields: further fields of `POST /tokenize`.

    Returns:
        The tokens of each text, in order.

    """
    texts = only_texts([inputs] if isinstance(inputs, str) else inputs)
    return Call(
        "/tokenize",
        texts,
        {**fields},
        read_tokens,
        chained,
        weigh=lambda tokens, _: TOKEN_BYTES * tokens,
        on_error=on_error,
    )


def read_tokens(content: bytes, texts: Sequence[str]) -> list[Tokens]:
    """Parse the tokens of each text in a reply of /tokenize."""
    results = json.loads(content)
    check_count(results, texts)
    return [_tokens(text, pieces) for text, pieces in zip(texts, results, strict=True)]


def _tokens(text: str, pieces: Sequence[Mapping[str, Any]]) -> Tokens:
    bytes_before = itertools.accumulate((len(character.encode()) for character in text), initial=0)
    place = {size: index for index, size in enumerate(bytes_before)}
    prompt = _prompt_bytes(text, pieces)

    def offset(piece: Mapping[str, Any]) -> Offset:
        if piece["special"] or piece["stop"] <= prompt:
            return SPECIAL
        return place[max(piece["start"] - prompt, 0)], place[piece["stop"] - prompt]

    return Tokens(
        text,
        [piece["text"] for piece in pieces],
        [piece["id"] for piece in pieces],
        [offset(piece) for piece in pieces],
        [piece["special"] for piece in pieces],
    )


def _prompt_bytes(text: str, pieces: Sequence[Mapping[str, Any]]) -> int:
    """Return the size in UTF-8 of the prompt before a text, which the reply does not contain.

    It is the smallest size for which every token after the prompt matches the text.
    """
    whole = text.encode()
    places = [
        (piece["start"], piece["stop"], piece["text"].encode())
        for piece in pieces
        if not piece["special"]
    ]

    def fits(size: int) -> bool:
        behind = (place for place in places if place[0] >= size)
        return all(whole[start - size : stop - size] == own for start, stop, own in behind)

    return next(filter(fits, range(max((stop for _, stop, _ in places), default=0) + 1)))
