"""Packed batch, the input of every runtime: texts end to end, without padding. numpy only.

Operations on single tokens run over the `[T]` tokens of all texts. Only attention within a text
needs the padded grid `[B, S]`; `padded_index` and `packed_index` convert between the two.

A picture is a text whose tokens are patches (`model.config.encoder.PatchLayout`), and whose pixels
go beside the token ids.

Notation: B texts, T tokens of all of them, S tokens of the longest, F pixel values of a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
PADDING = -1
"""Value in `padded_index` of a position without a token."""


@dataclass(frozen=True)
class Batch:
    """Texts end to end, and the positions of their tokens in the padded grid; all ids int64."""

    input_ids: Ids
    """`[T]`."""
    token_type_ids: Ids
    """`[T]`, the segment of each token."""
    position_ids: Ids
    """`[T]`, position of each token in its text."""
    padded_index: Ids
    """`[B, S]`, index n of the token at each position of the grid; −n − 1 if the token is masked as
    a key. `PADDING` for a position without a token, and for token 0 if it is masked as a key."""
    packed_index: Ids
    """`[T]`, position of each token in the flattened grid."""
    pixels: Floats | None = None
    """`[T, F]`, pixels of each patch, zeros for special tokens; None for texts."""

    @property
    def inputs(self) -> tuple[Ids | Floats, ...]:
        """Five arrays of the batch, or six with pixels, in the order of an encoder's inputs."""
        ids = (
            self.input_ids,
            self.token_type_ids,
            self.position_ids,
            self.padded_index,
            self.packed_index,
        )
        return ids if self.pixels is None else (*ids, self.pixels)

    @property
    def cu_seqlens(self) -> Ids:
        """`[B + 1]`: text i owns tokens `cu_seqlens[i]:cu_seqlens[i + 1]`."""
        texts, longest = self.padded_index.shape
        lengths = np.bincount(self.packed_index // longest, minlength=texts)
        return np.concatenate([[0], np.cumsum(lengths)])


def pack(
    texts: Sequence[tuple[ArrayLike, ArrayLike]],
    unseen: Sequence[Sequence[int]] = (),
    pixels: Sequence[Floats] = (),
) -> Batch:
    """Pack texts end to end.

    `texts` are token ids and segment ids of each text, none empty. `unseen` are indices of each
    text's tokens that are masked as keys, fewer than the text has. Such tokens attend to all
    others, as where transformers' `attention_mask` is 0. `pixels` are `[S, F]` of each text's
    tokens; empty for texts without pixels.
    """
    ids = [np.asarray(text_ids, np.int64) for text_ids, _ in texts]
    segments = [np.asarray(text_segments, np.int64) for _, text_segments in texts]
    lengths = np.array([len(text_ids) for text_ids in ids])
    columns = np.arange(lengths.max())
    real = columns < lengths[:, None]
    padded_index = np.full(real.shape, PADDING, np.int64)
    padded_index[real] = np.arange(lengths.sum())
    for row, hidden in zip(padded_index, unseen or [()] * len(ids), strict=True):
        places = list(hidden)
        row[places] = -1 - row[places]
    return Batch(
        input_ids=np.concatenate(ids),
        token_type_ids=np.concatenate(segments),
        position_ids=np.broadcast_to(columns, real.shape)[real],
        padded_index=padded_index,
        packed_index=np.flatnonzero(real),
        pixels=np.concatenate(pixels) if len(pixels) else None,
    )


def dummies(lengths: Sequence[int], features: int) -> Batch:
    """Return texts of token 0, with F pixels of 0 per token; without pixels if F is 0."""
    ids = [np.zeros(length, np.int64) for length in lengths]
    pixels = [np.zeros((length, features), np.float32) for length in lengths if features]
    return pack(list(zip(ids, ids, strict=True)), pixels=pixels)


def masked_texts(batch: Batch) -> list[int]:
    """Return the indices of texts with a token that is masked as a key."""
    lengths = np.diff(batch.cu_seqlens)
    real = np.arange(batch.padded_index.shape[1]) < lengths[:, None]
    return np.flatnonzero((real & (batch.padded_index < 0)).any(axis=1)).tolist()


def select(batch: Batch, texts: Sequence[int]) -> Batch:
    """Return some texts of a batch, in the given order."""
    ends, rows = batch.cu_seqlens.tolist(), batch.padded_index
    own = [slice(ends[text], ends[text + 1]) for text in texts]
    unseen = [
        np.flatnonzero(rows[text, : part.stop - part.start] < 0).tolist()
        for text, part in zip(texts, own, strict=True)
    ]
    return pack(
        [(batch.input_ids[part], batch.token_type_ids[part]) for part in own],
        unseen,
        [] if batch.pixels is None else [batch.pixels[part] for part in own],
    )


def widen(batch: Batch, rows: int, columns: int) -> Batch:
    """Return the batch in a larger grid, padded at the end of both axes."""
    texts, longest = batch.padded_index.shape
    padded_index = np.full((rows, columns), PADDING, np.int64)
    padded_index[:texts, :longest] = batch.padded_index
    row, column = np.divmod(batch.packed_index, longest)
    return replace(batch, padded_index=padded_index, packed_index=row * columns + column)


def padded(batch: Batch, pad_token_id: int) -> dict[str, Ids | Floats]:
    """Return the batch's padded grid by the names of transformers' inputs, `[B, S]` each.

    They are `input_ids`, `token_type_ids`, `position_ids`, `attention_mask`, and `pixels`
    `[B, S, F]` if the batch has them. Padding tokens have segment 0, position 0 and pixels 0.
    """

    def grid(values: Ids, filler: int = 0) -> Ids:
        whole = np.full(batch.padded_index.shape, filler, np.int64)
        whole.flat[batch.packed_index] = values
        return whole

    grids: dict[str, Ids | Floats] = {
        "input_ids": grid(batch.input_ids, pad_token_id),
        "token_type_ids": grid(batch.token_type_ids),
        "position_ids": grid(batch.position_ids),
        "attention_mask": (batch.padded_index >= 0).astype(np.int64),
    }
    if batch.pixels is not None:
        pixels = np.zeros((batch.padded_index.size, batch.pixels.shape[1]), np.float32)
        pixels[batch.packed_index] = batch.pixels
        grids["pixels"] = pixels.reshape(*batch.padded_index.shape, -1)
    return grids


def coarser(n: int, least_step: int = 1) -> int:
    """Return `n` rounded up to four binary digits: at most an eighth more, eight values an octave.

    The result is also a multiple of `least_step`, a power of two.
    """
    step = max(least_step, 1 << max(0, n.bit_length() - 4))
    return -(-n // step) * step
