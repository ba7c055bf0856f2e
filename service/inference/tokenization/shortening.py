"""Truncation of tokenised texts to a length that a client requests.

The tokenizer needs a copy of itself for each length to which it truncates. Clients may request any
length, so that their texts are truncated after tokenisation.
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
    """Return a text or pair truncated to `max_tokens` tokens; all special tokens remain.

    Of a pair, the longer text is truncated first (transformers' `longest_first`).

    Args:
        text: a whole text, or one truncated on the same side.
        max_tokens: maximum number of tokens; larger than the number of special tokens.
        direction: side that is truncated.

    Raises:
        InputTooLong: `max_tokens` is not larger than the number of special tokens.

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
    """Replace each text of a list by `shortened`, which runs in a thread.

    Raises:
        InputTooLong: as for `shortened`.

    """

    def cut() -> list[TokenizedText]:
        return [shortened(text, max_tokens, direction) for text in texts]

    texts[:] = await asyncio.to_thread(cut)


def _parts(special: np.ndarray) -> list[Ids]:
    """Return the indices of a text's own tokens, or of each text of a pair.

    Special tokens separate the texts of a pair.
    """
    own = np.flatnonzero(~special)
    gaps = np.flatnonzero(np.diff(own) > 1)
    if not len(gaps):
        return [own]
    return [own[: gaps[0] + 1], own[gaps[0] + 1 :]]


def _lengths(sizes: Sequence[int], excess: int) -> list[int]:
    """Return how many tokens of each text remain if `excess` tokens are removed.

    Args:
        sizes: number of tokens of a text, or of both texts of a pair.
        excess: number of tokens to remove.

    """
    if len(sizes) == 1:
        return [sizes[0] - excess]
    room = sum(sizes) - excess
    shorter, longer = sorted(sizes)
    if shorter > room - shorter:
        shorter = min(shorter, room // 2)
    longer = room - shorter
    return [shorter, longer] if sizes[0] <= sizes[1] else [longer, shorter]
