"""Parts of attention maps: some queries, some keys, and maps made smaller by their maxima.

Notation: T query tokens and S key tokens of a map, Q and K of them that are wanted, P the most
rows and columns of a pooled map, `…` any leading axes (heads).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.inference.attention.statistics import Maps

Places = NDArray[np.int32]


@dataclass(frozen=True)
class MapPart:
    """The part of each map that a caller wants."""

    queries: tuple[int, ...] | None = None
    """Rows, in this order; negative ones count from the end of each text, all when None."""
    keys: tuple[int, ...] | None = None
    """Columns, likewise."""
    max_size: int | None = None
    """Most rows and columns: a larger map is pooled; as many as there are when None."""

    @property
    def chosen(self) -> bool:
        """Whether some tokens are wanted, and not all."""
        return self.queries is not None or self.keys is not None

    def shape(self, queries: int, keys: int) -> tuple[int, int]:
        """Rows and columns of what is wanted of a map of so many queries and keys."""
        rows = queries if self.queries is None else len(self.queries)
        columns = keys if self.keys is None else len(self.keys)
        most = self.max_size or max(rows, columns)
        return min(rows, most), min(columns, most)

    def rows(self, maps: Maps) -> Maps:
        """The wanted queries of maps, over all keys: `[…, T, S]` → `[…, Q, S]`."""
        return taken(maps, self.queries, -2)

    def of(self, maps: Maps) -> Maps:
        """What is wanted of maps: `[…, T, S]` → `[…, min(Q, P), min(K, P)]`."""
        found = taken(self.rows(maps), self.keys, -1)
        if self.max_size is None or self.max_size >= max(found.shape[-2:]):
            return found
        return max_pooled(found, self.max_size)


WHOLE = MapPart()


def places(asked: tuple[int, ...], size: int) -> Places:
    """Places among so many tokens, negative ones counted from the end."""
    return (np.array(asked, np.int64) % size).astype(np.int32)


def taken(maps: Maps, asked: tuple[int, ...] | None, axis: int) -> Maps:
    """The maps at some places of an axis, C-contiguous; all of them when None."""
    return maps if asked is None else maps.take(places(asked, maps.shape[axis]), axis=axis)


@functools.lru_cache(2**10)
def bins(size: int, most: int) -> Places:
    """Start and end of each of min(S, P) bins of an axis, as torch's adaptive pooling has them.

    Bin i of n is ⌊i·S / n⌋ up to, and without, ⌈(i + 1)·S / n⌉: neighbours share a place where n
    does not divide S. Shape: `[min(S, P), 2]`, read only: many texts share their lengths.
    """
    count = min(size, most)
    edges = np.arange(count + 1, dtype=np.int64) * size
    starts, ends = edges[:-1] // count, -(-edges[1:] // count)
    found = np.stack([starts, ends], axis=1).astype(np.int32)
    found.setflags(write=False)
    return found


def max_pooled(maps: Maps, most: int) -> Maps:
    """The largest weight of each bin of queries and keys, as `torch.nn.AdaptiveMaxPool2d`.

    A head at a time, so that what is between stays in the cache.

    Shape: `[…, T, S]` → `[…, min(T, P), min(S, P)]`.
    """
    queries, keys = (bins(size, most) for size in maps.shape[-2:])
    pooled = np.empty((*maps.shape[:-2], len(queries), len(keys)), np.float32)
    heads = maps.reshape(-1, *maps.shape[-2:]), pooled.reshape(-1, *pooled.shape[-2:])
    for head, small in zip(*heads, strict=True):
        small[...] = _maxima(_maxima(head, queries, 0), keys, 1)
    return pooled


def _maxima(weights: Maps, edges: Places, axis: int) -> Maps:
    """The maxima of the bins of an axis, which is as long as there are bins.

    Bins are of two lengths at most: the j-th place of all of them is taken together, of the
    shorter ones the last once more. `np.maximum.reduceat` takes eight times as long.
    """
    starts, ends = edges.T
    found = weights.take(starts, axis=axis)
    other = np.empty_like(found)
    for place in range(1, int((ends - starts).max())):
        at = np.minimum(starts + place, ends - 1)
        weights.take(at, axis=axis, out=other, mode="clip")  # "raise" would buffer the output
        np.maximum(found, other, out=found)
    return found
