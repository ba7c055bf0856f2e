"""Attention of long texts in bounded memory, without the full matrix of weights.

The weights of a text of S tokens are N · S² numbers, 3 GB at 8,192 tokens and 12 heads. Both
functions call `Heads.weights` with some of the queries, or some of the keys, at a time.

Notation: B texts, N heads, S tokens of the longest, p size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.attention.weights import Heads
from model.config.encoder import EncoderConfig

QUERIES_AT_ONCE = 1024
"""Maximum number of a text's queries whose weights exist at one time."""
_BLOCK = 32
"""Queries of a block, which attend to the keys in their common window."""


def query_chunks(config: EncoderConfig) -> int:
    """Return the number of parts that a text's queries are computed in; 1 if texts are short."""
    return -(-config.max_position_embeddings // QUERIES_AT_ONCE)


def attend_in_chunks(
    heads: Heads, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, chunks: int
) -> Tensor:
    """Return the context of all queries, computed in consecutive parts.

    Query `[B, N, T, p]`, key and value `[B, N, S, p]` as `Heads.projected` gives them, mask `[B, 1,
    1, S]` → `[B, N, T, p]`. In self-attention T is S.
    """
    if chunks == 1:
        return heads.weights(query, key, mask) @ value
    length = query.shape[2]
    size = (length + chunks - 1) // chunks
    rows = torch.arange(chunks * size, device=query.device).clamp_max(length - 1)
    parts = torch.index_select(query, 2, rows).reshape(
        *query.shape[:2], chunks, size, query.shape[3]
    )
    keys = torch.arange(key.shape[2], device=query.device)
    contexts = []
    for number, part in enumerate(parts.unbind(2)):
        positions = torch.arange(size, device=query.device) + number * size
        weights = heads.weights(part, key, mask, distance=keys - positions[:, None])
        contexts.append(weights @ value)
    queries = torch.arange(length, device=query.device)  # not a slice, as below
    return torch.index_select(torch.cat(contexts, dim=2), 2, queries)


def attend_in_windows(
    heads: Heads, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, window: int
) -> Tensor:
    """Return the context of all queries, whose keys are at most `window` tokens away.

    Queries are computed in parallel blocks: a block of c queries attends to the c + 2 · window keys
    around it, so that the cost grows with S instead of S². The context of a query without any
    allowed key is 0, as in PyTorch's own attention: a query that is masked as a key and farther
    than `window` from all unmasked keys.
    """
    length = query.shape[2]
    blocks = (length + _BLOCK - 1) // _BLOCK
    starts = torch.arange(blocks, device=query.device)[:, None] * _BLOCK
    own = torch.arange(_BLOCK, device=query.device)
    seen = torch.arange(_BLOCK + 2 * window, device=query.device) - window
    rows = (starts + own).clamp_max(length - 1)
    places = starts + seen  # [blocks, c + 2 · window]
    inside = (places >= 0) & (places < length)
    places = places.clamp(0, length - 1)
    real = torch.index_select(mask[:, 0, 0], 1, places.flatten()).reshape(-1, *places.shape)
    weights = heads.weights(
        _blocks(query, rows),
        _blocks(key, places),
        (real & inside)[:, :, None, None],
        distance=seen - own[:, None],
    )
    context = (weights @ _blocks(value, places)).transpose(1, 2)  # [B, N, blocks, c, p]
    # not a slice, for which the exporter would fix the length
    places = torch.arange(length, device=query.device)
    context = torch.index_select(context.flatten(2, 3), 2, places)
    beyond_last = (mask[:, 0, 0].long() * (places + 1)).amax(dim=1, keepdim=True)
    sees_any = places - window < beyond_last
    return context * sees_any[:, None, :, None].to(context.dtype)


def _blocks(x: Tensor, places: Tensor) -> Tensor:
    """Gather `[B, N, S, p]` at places `[blocks, n]` → `[B, blocks, N, n, p]`."""
    gathered = torch.index_select(x, 2, places.flatten())
    return gathered.reshape(*x.shape[:2], *places.shape, x.shape[3]).transpose(1, 2)
