"""Tokenised texts cut to fewer tokens than fit the model, as a caller asks.

A tokenizer that cuts to another length is a copy of it: of a caller's lengths there are too many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from service.engines.contract import Ids
from service.errors import InputTooLong
from service.inference.tokenization.excerpt import Direction
from service.inference.tokenization.tokenizer import TokenizedText


def shortened(text: TokenizedText, max_tokens: int, direction: Direction) -> TokenizedText:
    """A text or pair with at most so many tokens, special ones included, which all stay.

    Of a pair the longer text gives way first (transformers' `longest_first`).

    Args:
        text: whole, or cut on the same side.
        max_tokens: at least one more than special tokens.
        direction: which side is cut.

    Raises:
        InputTooLong: as many special tokens leave no room for one of the text.

    """
    excess = len(text.input_ids) - max_tokens
    if excess <= 0:
        return text
    special = np.array([*text.special_tokens_mask], bool)
    parts = _parts(special)
    if max_tokens <= int(special.sum()):
        raise InputTooLong(
            f"{max_tokens} tokens leave no room beside the {int(special.sum())} special ones"
        )
    keep = special.copy()
    for part, count in zip(parts, _lengths([len(part) for part in parts], excess), strict=True):
        keep[part[:count] if direction == "right" else part[len(part) - count :]] = True
    kept: list[int] = np.flatnonzero(keep).tolist()
    return replace(
        text,
        tokens=[text.tokens[index] for index in kept],
        input_ids=text.input_ids[kept],
        segment_ids=text.segment_ids[kept],
        places=text.places[kept],
        special_tokens_mask=bytes(text.special_tokens_mask[index] for index in kept),
        truncated=True,
        unknown=text.unknown[kept],
    )


async def shorten(texts: list[TokenizedText], max_tokens: int, direction: Direction) -> None:
    """Cut each of some texts as `shortened` does, in a thread; they take the place of the whole.

    Raises:
        InputTooLong: as `shortened`.

    """

    def cut() -> list[TokenizedText]:
        return [shortened(text, max_tokens, direction) for text in texts]

    texts[:] = await asyncio.to_thread(cut)


def _parts(special: np.ndarray) -> list[Ids]:
    """The places of a text's own tokens; of both texts of a pair, which special ones part."""
    own = np.flatnonzero(~special)
    gaps = np.flatnonzero(np.diff(own) > 1)
    if not len(gaps):
        return [own]
    return [own[: gaps[0] + 1], own[gaps[0] + 1 :]]


def _lengths(sizes: Sequence[int], excess: int) -> list[int]:
    """How many tokens of each text stay when so many of all go."""
    if len(sizes) == 1:
        return [sizes[0] - excess]
    room = sum(sizes) - excess
    shorter, longer = sorted(sizes)
    if shorter > room - shorter:
        shorter = min(shorter, room // 2)
    longer = room - shorter
    return [shorter, longer] if sizes[0] <= sizes[1] else [longer, shorter]
