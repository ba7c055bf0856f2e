"""BM42 of an encoder's last layer, from the maps that any encoder has.

Notation: S tokens of one text, L layers, N heads.
"""

from __future__ import annotations

import asyncio
import contextlib

from service.engines.contract import Floats
from service.errors import NoTaskHead
from service.inference.attention.maps import LayerMaps
from service.inference.attention.selection import AttentionSelection
from service.inference.attention.stream import AttentionStream
from service.inference.bm42.words import sparse_vector
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.tasks.task_heads import SparseVector

INLINE_TOKENS = 64
"""Tokens whose words are put together and stemmed on the event loop, which takes at most 1 ms."""


def check_word_pieces(inference: Inference) -> None:
    """Refuse models whose tokens do not tell where an English word begins.

    Raises:
        NoTaskHead: the tokenizer is none of WordPieces.

    """
    if not inference.tokenizer.word_pieces:
        raise NoTaskHead(
            f"{inference.manifest.model} has no WordPiece tokenizer, which bm42 takes words from: "
            "serve a BERT"
        )


def last_layer(inference: Inference, prepared: PreparedTexts) -> AttentionStream:
    """The attention of every text's first token in the last layer, `[S]`, the mean over heads."""
    config = inference.config
    selection = AttentionSelection(
        layers=(config.num_hidden_layers - 1,),
        heads=tuple(range(config.num_attention_heads)),
        weights=True,
        statistics=False,
        rollout=False,
        top_k=None,
        ablated=(),
    )
    return inference.attention(prepared, selection, _looks_of_first)


async def bm42_vectors(
    inference: Inference, prepared: PreparedTexts, stream: AttentionStream
) -> list[SparseVector]:
    """The vector of each text, from its stream of `last_layer`.

    Raises:
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    special = inference.tokenizer.special_tokens
    async with contextlib.aclosing(stream.results()) as results:
        found = [
            (prepared.texts[maps.text].tokens, maps.weights)
            async for maps in results
            if isinstance(maps, LayerMaps) and maps.weights is not None
        ]

    def vectors() -> list[SparseVector]:
        return [sparse_vector(tokens, looks, special) for tokens, looks in found]

    if sum(len(tokens) for tokens, _ in found) <= INLINE_TOKENS:
        return vectors()
    return await asyncio.to_thread(vectors)


def _looks_of_first(weights: Floats) -> Floats:
    """`[N, S, S]` → `[S]`."""
    looks: Floats = weights[:, 0].mean(axis=0)
    return looks
