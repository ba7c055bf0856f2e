"""`model.artifact.batch.Batch` as tensors: packed tokens, and the way to the padded grid and back.

Notation: B texts, T tokens of all of them, S tokens of the longest, p any size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model.artifact.batch import Batch


class PackedBatch(NamedTuple):
    """Texts end to end, and their places in the padded grid; int64.

    What looks at one token alone takes `[T]`, or `[1, T]` where a runtime is faster with it.
    """

    input_ids: Tensor
    """`[T]`."""
    token_type_ids: Tensor
    """`[T]`, the segment of each token."""
    position_ids: Tensor
    """`[T]`, the place of each token in its text."""
    padded_index: Tensor
    """`[B, S]`, the number n of the token at each place of the grid, −n − 1 of one that no token
    attends to; −1 where there is none."""
    packed_index: Tensor
    """`[T]`, the place of each token in the flattened grid."""

    @classmethod
    def of(cls, batch: Batch) -> PackedBatch:
        """The same batch, sharing its memory."""
        return cls(*map(torch.from_numpy, batch.inputs))

    @property
    def mask(self) -> Tensor:
        """Boolean `[B, 1, 1, S]`, True on tokens to attend to; each text has at least one."""
        return (self.padded_index >= 0)[:, None, None, :]

    def grid_ids(self) -> Tensor:
        """The token ids `[B, S]`; places without a token hold another's."""
        ids = torch.index_select(self.input_ids.flatten(), 0, self._tokens())
        return ids.reshape(self.padded_index.shape)

    def pad(self, x: Tensor) -> Tensor:
        """`[T, p]` or `[1, T, p]` → `[B, S, p]`; places without a token hold another's values."""
        rows = torch.index_select(x.flatten(0, -2), 0, self._tokens())
        return rows.reshape(*self.padded_index.shape, x.shape[-1])

    def pack(self, x: Tensor) -> Tensor:
        """`[B, S, p]` → `[T, p]`."""
        return torch.index_select(x.flatten(0, 1), 0, self.packed_index)

    def _tokens(self) -> Tensor:
        """The number of the token at each place `[B · S]`; the first where there is none."""
        index = self.padded_index.flatten()
        return torch.maximum(index, -1 - index)
