"""Low-rank adapters of an encoder's maps (Hu et al. 2021, https://arxiv.org/abs/2106.09685).

Adapter k changes a map W x to W x + B_k A_k x, where A_k and B_k have rank r. The matrices of all K
adapters are stored together, as one pair of maps with K · r features between them. For each token,
the features of all adapters but its own are multiplied by 0, so that texts with different adapters
share a batch. A token's type is the number of its adapter, 1 … K, or 0 for W alone.

Notation: T tokens, F = K · r features, d and p sizes of a map's input and output.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from model.config.encoder import AdapterLayout, EncoderConfig
from model.packing import PackedBatch


def with_chosen(batch: PackedBatch, config: EncoderConfig, dtype: torch.dtype) -> PackedBatch:
    """Return a batch with `low_rank`: 1 for the features of each token's adapter, else 0.

    Without adapters it is the batch itself.
    """
    layout = config.adapters
    if layout is None:
        return batch
    adapters = torch.arange(1, layout.count + 1, device=batch.token_type_ids.device)
    owner = adapters.repeat_interleave(layout.rank)
    return batch._replace(low_rank=(batch.token_type_ids[..., None] == owner).to(dtype))


class LowRank(nn.Module):
    """Additions of all adapters to a linear map."""

    def __init__(self, layout: AdapterLayout, inputs: int, outputs: int) -> None:
        super().__init__()
        self.rank = layout.rank
        self.down = nn.Linear(inputs, layout.features, bias=False)
        self.up = nn.Linear(layout.features, outputs, bias=False)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Map `[T, d]` → `[T, p]`, with the chosen features `[T, F]`."""
        return cast(Tensor, self.up(self.down(x) * chosen))

    @property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """Matrices `[F, d]` and `[p, F]` of all adapters."""
        return self.down.weight, self.up.weight

    def matrix(self, adapter: int) -> Tensor:
        """Return B_k A_k of adapter k, `[p, d]`."""
        part = slice(self.rank * (adapter - 1), self.rank * adapter)
        return self.up.weight[:, part] @ self.down.weight[part]


class LowRankTable(nn.Module):
    """Additions of all adapters to a table of embeddings."""

    def __init__(self, layout: AdapterLayout, count: int, size: int) -> None:
        super().__init__()
        self.down = nn.Embedding(count, layout.features)
        self.up = nn.Linear(layout.features, size, bias=False)

    def forward(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Map token ids `[T]` → `[T, p]`, with the chosen features `[T, F]`."""
        return cast(Tensor, self.up(self.down(ids) * chosen))


def low_rank_maps(config: EncoderConfig, **sizes: tuple[int, int]) -> nn.ModuleDict | None:
    """Return the additions to a module's maps by their names; None without adapters.

    `sizes` are of the input and output of each map.
    """
    layout = config.adapters
    if layout is None:
        return None
    return nn.ModuleDict({name: LowRank(layout, *size) for name, size in sizes.items()})


def mapped(module: nn.Module, name: str, x: Tensor, chosen: Tensor | None) -> Tensor:
    """Return the output of a module's linear map, with the addition of each token's adapter.

    The additions are the module's `low_rank`. `x` is `[T, d]`; `chosen` `[T, F]` has the features
    of each token's adapter, None without adapters.
    """
    own = cast(Tensor, getattr(module, name)(x))
    if chosen is None:
        return own
    low_rank = cast(nn.ModuleDict, module.low_rank)
    return own + cast(Tensor, low_rank[name](x, chosen))
