"""Packed batches as tensors, with conversion to the padded grid and back.

Notation: B texts, T tokens of all of them, S tokens of the longest, p any size,
F pixel values of a patch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model.numerics.batch import Batch


class PackedBatch(NamedTuple):
    """Texts end to end, and the positions of their tokens in the padded grid; all ids int64.

    Operations on single tokens take `[T]`, or `[1, T]` for runtimes that are faster with it.
    `model.numerics.batch.Batch` has the same fields as arrays.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    padded_index: Tensor
    packed_index: Tensor
    pixels: Tensor | None = None
    """`[T, F]` in float32, pixels of each patch; None for texts."""
    low_rank: Tensor | None = None
    """`[T, F]`, 1 for the low-rank features of a token's segment, else 0; None for an encoder
    without them. The encoder sets it."""

    @classmethod
    def of(cls, batch: Batch) -> PackedBatch:
        """Return the batch as tensors that share its memory."""
        return cls(*map(torch.from_numpy, batch.inputs))

    @property
    def mask(self) -> Tensor:
        """Boolean mask `[B, 1, 1, S]`, True for tokens to attend to; each text has at least one."""
        return (self.padded_index >= 0)[:, None, None, :]

    def grid_ids(self) -> Tensor:
        """Return the token ids `[B, S]`; positions without a token repeat another token's id."""
        ids = torch.index_select(self.input_ids.flatten(), 0, self._tokens())
        return ids.reshape(self.padded_index.shape)

    def pad(self, x: Tensor) -> Tensor:
        """Pad `[T, p]` or `[1, T, p]` to `[B, S, p]`; padded positions repeat other values."""
        rows = torch.index_select(x.flatten(0, -2), 0, self._tokens())
        return rows.reshape(*self.padded_index.shape, x.shape[-1])

    def pack(self, x: Tensor) -> Tensor:
        """Select the tokens of a padded grid: `[B, S, …]` → `[T, …]`."""
        return torch.index_select(x.flatten(0, 1), 0, self.packed_index)

    def _tokens(self) -> Tensor:
        """Return the token index at each position `[B · S]`; 0 for a position without a token."""
        index = self.padded_index.flatten()
        return torch.maximum(index, -1 - index)


class GridBatch(PackedBatch):
    """Batch whose tokens are the padded grid itself: `[B, S]` in place of `[T]`.

    Padding tokens are computed like all others and masked as keys, so that no operation moves
    tokens: docs/decisions/0060-packed-vectors-on-a-device.md. `padded_index` is the attention mask,
    0 for tokens masked as keys and 1 for others; `packed_index` is not read.
    """

    @property
    def mask(self) -> Tensor:
        """Boolean mask `[B, 1, 1, S]`, as for packed texts."""
        return (self.padded_index > 0)[:, None, None, :]

    def grid_ids(self) -> Tensor:
        """Return the token ids `[B, S]`."""
        return self.input_ids

    def pad(self, x: Tensor) -> Tensor:
        """Return `[B, S, p]` as it is."""
        return x

    def pack(self, x: Tensor) -> Tensor:
        """Return `[B, S, …]` as it is."""
        return x
