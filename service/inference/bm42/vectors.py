"""BM42 vectors from the attention maps of an encoder's last layer.

Notation: S tokens of one text, L layers, N heads.
"""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np

from service.engines.contract import Floats
from service.errors import NoTaskHead
from service.inference.attention.maps import LayerMaps
from service.inference.attention.selection import AttentionSelection
from service.inference.attention.stream import AttentionStream
from service.inference.bm42.words import sparse_vector
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.head_vectors import SparseVector

INLINE_TOKENS = 64
"""Maximum number of tokens whose words are stemmed on the event loop, in at most 1 ms."""


def check_word_pieces(inference: Inference) -> None:
    """Reject models whose tokens do not mark the beginning of English words.

    Raises:
        NoTaskHead: the tokenizer is not a WordPiece tokenizer.

    """
    if not inference.tokenizer.word_pieces:
        raise NoTaskHead(
            f"{inference.manifest.model} has no WordPiece tokenizer, which bm42 takes words from: "
            "serve a BERT"
        )


def last_layer(inference: Inference, prepared: PreparedTexts) -> AttentionStream:
    """Return a stream of the first token's attention in the last layer, `[S]`, mean over heads."""
    config = inference.config
    layer, heads = config.num_hidden_layers - 1, tuple(range(config.num_attention_heads))
    selection = AttentionSelection({"encoder": ((layer,), heads)})
    return inference.attention(prepared, selection, _looks_of_first)


async def bm42_vectors(
    inference: Inference, prepared: PreparedTexts, stream: AttentionStream
) -> list[SparseVector]:
    """Compute the vector of each text from the stream of `last_layer`.

    Raises:
        Overloaded: the queue has no room, or the deadline cannot be met.
        ServiceError: the engine failed.

    """
    special = inference.tokenizer.special_tokens
    async with contextlib.aclosing(stream.results()) as results:
        rows = [
            (prepared.texts[maps.text].tokens, np.asarray(maps.weights, np.float32))
            async for maps in results
            if isinstance(maps, LayerMaps) and maps.weights is not None
        ]

    def vectors() -> list[SparseVector]:
        return [sparse_vector(tokens, attention, special) for tokens, attention in rows]

    if sum(len(tokens) for tokens, _ in rows) <= INLINE_TOKENS:
        return vectors()
    return await asyncio.to_thread(vectors)


def _looks_of_first(weights: Floats) -> Floats:
    """Average the first token's attention over heads, `[N, S, S]` → `[S]`."""
    attention: Floats = weights[:, 0].mean(axis=0)
    return attention
