"""Inputs of the graph of vectors: texts end to end, rounded up to few sizes by dummy texts.

Notation: B texts, T tokens of all texts, S tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model.config.encoder import EncoderConfig
from model.errors import ModelError
from model.numerics.batch import Batch, Floats, Ids, coarser, dummies, join
from model.runtimes.sessions import Array

ALIGNED = 8
"""Alignment of row lengths, for the fastest half-precision kernels."""
MOST_ROTATED = 65_535
"""Maximum tokens of a batch with rotary positions, whose kernel has a row of blocks per token."""


def with_dummies(batch: Batch) -> Batch:
    """Return the batch with dummy texts after its own, so that T has eight sizes an octave.

    A device's allocator can then use the memory of earlier batches again. Pictures all have one
    length, and their pixels would be copied: they get no dummies.
    """
    if batch.pixels is not None:
        return batch
    tokens, longest = len(batch.input_ids), batch.padded_index.shape[1]
    missing = coarser(tokens, ALIGNED) - tokens
    lengths = [min(longest, missing - first) for first in range(0, missing, longest)]
    return join(batch, dummies(lengths, 0)) if lengths else batch


def packed_inputs(
    batch: Batch, config: EncoderConfig, names: Sequence[str], *, last: bool
) -> dict[str, Array]:
    """Return the graph's inputs with these names; see `vectors_signature`.

    Args:
        batch: texts without masked tokens.
        config: the encoder's config.
        names: names of the inputs.
        last: whether a text's last token is pooled, in place of its first.

    Raises:
        ModelError: there are more tokens than the kernel of rotary positions can take.

    """
    texts, whole = len(batch.padded_index), with_dummies(batch)
    if "position_ids" in names and len(whole.input_ids) > MOST_ROTATED:
        raise ModelError(
            f"a batch of {len(whole.input_ids)} tokens is too large for rotary positions on a "
            f"GPU: set --max-batch-tokens to at most {MOST_ROTATED // 2}"
        )
    ends = whole.cu_seqlens
    lengths = np.diff(ends)
    columns = np.arange(coarser(int(lengths.max()), ALIGNED))
    real = columns < lengths[:, None]
    arrays: dict[str, Ids | Floats | NDArray[np.bool_]] = {
        "input_ids": whole.input_ids,
        "token_type_ids": whole.token_type_ids,
        "position_ids": whole.position_ids,
        "columns": np.minimum(columns, config.max_position_embeddings - 1),
        "token_offset": np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).reshape(
            real.shape
        ),
        "cu_seqlens": ends,
        "pooled_rows": (ends[1:] - 1 if last else ends[:-1])[:texts],
    }
    if "embedding_rows" in names:
        arrays["embedding_rows"] = _embedding_rows(whole, config, ends)
    return {
        name: whole.pixels
        if name == "pixels" and whole.pixels is not None
        else arrays[name].astype(np.int64 if name == "position_ids" else np.int32)
        for name in names
    }


def _embedding_rows(batch: Batch, config: EncoderConfig, ends: Ids) -> Ids:
    """Return each token's row in the common table of segments and positions, `[T]`.

    Positions after a padding id count as in `model.encoder.embeddings`.
    """
    segments = batch.token_type_ids if config.segments else np.zeros_like(batch.token_type_ids)
    match config.embeddings.positions:
        case "none":
            return segments
        case "table":
            count, positions = config.max_position_embeddings, batch.position_ids
        case "table_after_padding":
            padding = config.pad_token_id
            count = config.max_position_embeddings + padding + 1
            real = (batch.input_ids != padding).astype(np.int64)
            before = np.concatenate([[0], np.cumsum(real)])
            starts = np.repeat(before[ends[:-1]], np.diff(ends))
            positions = (before[1:] - starts) * real + padding
    return segments * count + positions
