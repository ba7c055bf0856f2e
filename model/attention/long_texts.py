"""Attention without its weights as a whole: what keeps the memory of long texts in bounds.

The weights of a text of S tokens are N · S² numbers, 3 GB at 8,192 tokens and 12 heads. What
attends is always `Heads.weights`; here it is given some queries, or some keys, at a time.

Notation: B texts, N heads, S tokens of the longest, p size of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.attention.weights import Heads
from model.config.encoder import EncoderConfig

QUERIES_AT_ONCE = 1024
"""The most queries of a text whose weights exist at a time."""
_BLOCK = 32
"""Queries of a block, which look at the keys in their window together."""


def query_chunks(config: EncoderConfig) -> int:
    """Parts that a text's queries are computed in: one where no text is long."""
    return -(-config.max_position_embeddings // QUERIES_AT_ONCE)


def attend_in_chunks(
    heads: Heads, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, chunks: int
) -> Tensor:
    """The context of all queries, computed for one part of them after another.

    Args:
        heads: what attends.
        query: `[B, N, T, p]`; in self-attention T is S.
        key: `[B, N, S, p]`, as `Heads.projected` gives both.
        value: projected, like `key`.
        mask: boolean `[B, 1, 1, S]`.
        chunks: number of parts.

    Returns:
        `[B, N, T, p]`.

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
    """The same where a query looks no farther than `window` tokens: blocks of queries side by side.

    A block of c queries sees the c + 2 · window keys around it, so that the cost grows with S
    instead of S². The context of a query that sees no key is 0, as PyTorch's own attention has it:
    one that no token attends to, and that is farther from those that are attended to.
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
    """`[B, N, S, p]` at places `[blocks, n]` → `[B, blocks, N, n, p]`."""
    found = torch.index_select(x, 2, places.flatten())
    return found.reshape(*x.shape[:2], *places.shape, x.shape[3]).transpose(1, 2)
