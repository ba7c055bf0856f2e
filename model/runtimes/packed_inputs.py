"""Inputs of the graph of vectors: texts end to end, rounded up to few sizes by dummy texts.

Notation: B texts, T tokens of all texts, S tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from model.config.encoder import EncoderConfig
from model.errors import ModelError
from model.numerics.batch import Batch, Ids, coarser
from model.runtimes.sessions import Array

ALIGNED = 8
"""Alignment of row lengths, for the fastest half-precision kernels."""
MOST_ROTATED = 65_535
"""Maximum tokens of a batch with rotary positions, whose kernel has a row of blocks per token."""


class Sizes(NamedTuple):
    """Sizes of all inputs, to which dummy texts fill a batch up."""

    tokens: int
    """T."""
    columns: int
    """S."""
    texts: int
    """B, also the number of vectors."""

    def hold(self, batch: Batch) -> bool:
        """Return whether a batch of texts can be filled up to these sizes."""
        texts, longest = batch.padded_index.shape
        missing = self.tokens - len(batch.input_ids)
        texts += -(-missing // self.columns)
        return missing >= 0 and longest <= self.columns and texts <= self.texts


def dummy_lengths(batch: Batch, sizes: Sizes | None = None) -> list[int]:
    """Return the lengths of dummy texts after a batch, for these sizes or eight T an octave.

    A device's allocator can then use the memory of earlier batches again. Pictures all have one
    length, and their pixels would be copied: they get no dummies.
    """
    if batch.pixels is not None:
        return []
    tokens, (texts, longest) = len(batch.input_ids), batch.padded_index.shape
    total = coarser(tokens, ALIGNED)
    if sizes:
        total, longest = sizes.tokens, sizes.columns
    missing = total - tokens
    lengths = [min(longest, missing - first) for first in range(0, missing, longest)]
    empty = sizes.texts - texts - len(lengths) if sizes else 0
    return lengths + [0] * empty


def packed_inputs(
    batch: Batch,
    config: EncoderConfig,
    names: Sequence[str],
    *,
    last: bool,
    sizes: Sizes | None = None,
) -> dict[str, Array]:
    """Return the graph's inputs with these names; see `vectors_signature`.

    The batch has no masked tokens. `last` pools a text's last token, in place of its first. `sizes`
    hold the batch; the next larger T when None.
    """
    added, texts = dummy_lengths(batch, sizes), len(batch.padded_index)
    lengths = np.concatenate([np.diff(batch.cu_seqlens), np.array(added, np.int64)])
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if "position_ids" in names and ends[-1] > MOST_ROTATED:
        raise ModelError(
            f"a batch of {ends[-1]} tokens is too large for rotary positions on a "
            f"GPU: set --max-batch-tokens to at most {MOST_ROTATED // 2}"
        )
    ids, types = (np.pad(own, (0, sum(added))) for own in (batch.input_ids, batch.token_type_ids))
    columns = np.arange(sizes.columns if sizes else coarser(int(lengths.max()), ALIGNED))
    real = columns < lengths[:, None]
    rows = (ends[1:] - 1 if last else ends[:-1])[:texts]
    arrays: dict[str, Ids] = {
        "input_ids": ids,
        "token_type_ids": types,
        "position_ids": np.broadcast_to(columns, real.shape)[real],
        "columns": np.minimum(columns, config.max_position_embeddings - 1),
        "token_offset": np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).reshape(
            real.shape
        ),
        "cu_seqlens": ends,
        "pooled_rows": np.pad(rows, (0, sizes.texts - texts if sizes else 0)),
    }
    if "embedding_rows" in names:
        arrays["embedding_rows"] = _embedding_rows(arrays, config)
    return {
        name: batch.pixels
        if name == "pixels" and batch.pixels is not None
        else arrays[name].astype(np.int64 if name == "position_ids" else np.int32)
        for name in names
    }


def _embedding_rows(arrays: Mapping[str, Ids], config: EncoderConfig) -> Ids:
    """Return each token's row in the common table of segments and positions, `[T]`.

    Positions after a padding id count as in `model.encoder.embeddings`.
    """
    ids, ends = arrays["input_ids"], arrays["cu_seqlens"]
    segments = arrays["token_type_ids"] if config.segments else np.zeros_like(ids)
    match config.embeddings.positions:
        case "none":
            return segments
        case "table":
            count, positions = config.max_position_embeddings, arrays["position_ids"]
        case "table_after_padding":
            padding = config.pad_token_id
            count = config.max_position_embeddings + padding + 1
            real = (ids != padding).astype(np.int64)
            before = np.concatenate([[0], np.cumsum(real)])
            starts = np.repeat(before[ends[:-1]], np.diff(ends))
            positions = (before[1:] - starts) * real + padding
    return segments * count + positions
