"""Pooling of token vectors to one vector per text, as in sentence-transformers. numpy only.

Notation: S tokens of one text, without padding; H hidden size; P = S + 1 parts of a decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
PoolingName = Literal["mean", "cls", "max", "last"]
"""Pooling that a request can name."""
PoolingMode = PoolingName | Literal["mean_sqrt_len_tokens", "weightedmean", "attention"]
PoolingModes = PoolingMode | tuple[PoolingMode, ...]
"""Pooling mode, or several modes whose vectors are concatenated."""
POOLINGS: tuple[PoolingName, ...] = get_args(PoolingName)
_LEARNED = "pooling by attention has parameters: see model.numerics.attention_pooling"


@dataclass(frozen=True, slots=True)
class TextPooling:
    """Pooling of one text of a batch."""

    text: int
    """Index of the text in the batch."""
    layer: int
    """Index of the hidden state, 0 … L."""
    mode: PoolingModes
    first_token: int = 0
    """Index of the first pooled token; at least one token is pooled."""
    unit_features: int = 0
    """Number of leading features to scale to unit length; the other features are undefined. 0: no
    normalisation."""
    left_out: tuple[int, ...] = ()
    """Indices of further tokens that are not pooled, from `first_token` on; not all of them."""


Pool = Callable[[NDArray[np.float32], PoolingModes, int, Sequence[int]], Vector]
"""Function as `pool`."""


def modes_of(pooling: PoolingModes) -> tuple[PoolingMode, ...]:
    """Return the single modes of a pooling, in their order."""
    return pooling if isinstance(pooling, tuple) else (pooling,)


def pool(
    hidden: NDArray[np.float32],
    pooling: PoolingModes,
    first_token: int = 0,
    left_out: Sequence[int] = (),
) -> Vector:
    """Return one vector `[H]` for one text `[S, H]`, or `[n · H]` for n modes; not normalised.

    Modes are the mean over tokens, the first token ("cls"), the maximum of each feature, the last
    token, the sum of tokens over the root of their number, and their mean weighted 1 … S
    (Muennighoff 2022, https://arxiv.org/abs/2202.08904). `first_token` is the index of the first
    pooled token, and `left_out` are the indices of further tokens from there on that are not
    pooled, but not all, as where sentence-transformers' `attention_mask` is 0. The other tokens
    keep their weights.
    """
    if isinstance(pooling, tuple):
        return np.concatenate([pool(hidden, mode, first_token, left_out) for mode in pooling])
    counted = hidden[first_token:]
    excluded = [token - first_token for token in left_out]
    if excluded:
        counted = np.delete(counted, excluded, axis=0)
    vector: Vector
    match pooling:
        case "mean":
            vector = counted.mean(axis=0)
        case "cls":
            vector = counted[0].copy()
        case "max":
            vector = counted.max(axis=0)
        case "last":
            vector = counted[-1].copy()
        case "mean_sqrt_len_tokens":
            vector = counted.sum(axis=0) / np.sqrt(np.float32(len(counted)))
        case "weightedmean":
            weights = np.arange(first_token + 1, len(hidden) + 1, dtype=np.float32)
            # sentence-transformers counts from the first token whose mask is 1
            start = next(token for token in range(len(hidden)) if token not in left_out)
            weights = np.delete(weights, excluded) - start
            vector = weights @ counted / weights.sum()
        case "attention":
            raise ValueError(_LEARNED)
    return vector


def pooled_parts(
    parts: NDArray[np.float32], pooling: PoolingModes, first_token: int = 0
) -> NDArray[np.float32]:
    """Return the shares of input tokens in a pooled vector.

    `parts` `[S, P, H]` are the state of every token, then the share of each input token in it. Each
    feature of "max" comes from the token with its largest value. The result is `[P, H]`, or `[P, n
    · H]` for n modes.
    """
    pooled = []
    for mode in modes_of(pooling):
        if mode == "max":
            largest = first_token + parts[first_token:, 0].argmax(axis=0)
            features = np.arange(parts.shape[2])
            pooled.append(parts[largest, :, features].T)
            continue
        weights = np.zeros(len(parts), np.float32)
        counted = weights[first_token:]
        match mode:
            case "mean":
                counted[:] = 1 / len(counted)
            case "cls":
                counted[0] = 1
            case "last":
                counted[-1] = 1
            case "mean_sqrt_len_tokens":
                counted[:] = 1 / np.sqrt(len(counted))
            case "weightedmean":
                counted[:] = np.arange(first_token + 1, len(parts) + 1)
                counted /= counted.sum()
            case "attention":
                raise ValueError(_LEARNED)
        pooled.append(np.tensordot(weights, parts, axes=1))
    joined: NDArray[np.float32] = np.concatenate(pooled, axis=1)
    return joined


def l2_normalize(vector: Vector) -> Vector:
    """Return `vector` / max(‖vector‖₂, 1e-12), as torch's `normalize` does."""
    norm = np.sqrt(np.dot(vector, vector))
    return vector / np.maximum(norm, np.float32(1e-12))
