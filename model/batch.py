"""A padded batch, as every engine takes it. numpy only.

Notation: B batch, S tokens of the longest text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Token ids, which of them are real, and their segments; int64 `[B, S]` each."""

    input_ids: Ids
    attention_mask: Ids
    """1 on real tokens, 0 on padding."""
    token_type_ids: Ids


def pad(texts: Sequence[tuple[ArrayLike, ArrayLike]], pad_token_id: int) -> Batch:
    """Right-pad texts, each its token ids and its segments, to the longest."""
    rows = [(np.asarray(ids), np.asarray(segments)) for ids, segments in texts]
    shape = (len(rows), max(len(ids) for ids, _ in rows))
    input_ids = np.full(shape, pad_token_id, np.int64)
    attention_mask = np.zeros(shape, np.int64)
    token_type_ids = np.zeros(shape, np.int64)
    for row, (ids, segments) in enumerate(rows):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
        token_type_ids[row, : len(ids)] = segments
    return Batch(input_ids, attention_mask, token_type_ids)
