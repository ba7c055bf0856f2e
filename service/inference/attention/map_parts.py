"""Parts of attention maps: selected queries and keys, max-pooled maps, and maps over pixels.

Notation: T query tokens and S key tokens of a map, Q selected queries and K selected keys, P
maximum rows and columns of a pooled map, `…` any leading axes (heads).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.engines.contract import Floats
from service.inference.attention.statistics import Indices, Maps
from service.inference.tokenization.text import PictureView

Resampling = Literal["nearest", "bilinear"]
"""Value of a pixel: the value of its patch, or a mean of the four nearest patches."""


def enlarged(maps: Floats, view: PictureView, resampling: Resampling) -> Floats:
    """Return maps over a picture's tokens as maps over its pixels, `[…, S]` → `[…, H, W]`.

    Pixels outside the crop are 0. The weights of special tokens have no place in the picture and
    are left out. Bilinear interpolation is torch's with `align_corners=False`: the centre of a
    patch has the patch's value, and beyond the outermost centres the value stays the same up to the
    crop's edge.
    """
    (rows, columns), (left, top, right, bottom) = view.grid, view.crop
    width, height = view.size
    patches = maps[..., -rows * columns :].reshape(*maps.shape[:-1], rows, columns)
    down = axis_weights(rows, height, (top, bottom), resampling)
    across = axis_weights(columns, width, (left, right), resampling)
    pixels: Floats = np.matmul(down, np.matmul(patches, across.T))
    return pixels


def axis_weights(
    patches: int, pixels: int, crop: tuple[float, float], resampling: Resampling
) -> Floats:
    """Return the weight of each patch in each pixel of an axis, `[pixels, patches]`.

    `crop` is the start and end of the patches in pixels. Rows sum to 1, and are zeros for pixels
    whose centre is outside the crop.
    """
    start, end = crop
    places = (np.arange(pixels) + 0.5 - start) * (patches / (end - start))
    inside = (places >= 0) & (places < patches)
    weights = np.zeros((pixels, patches), np.float32)
    if resampling == "nearest":
        shares = [(np.floor(places), inside.astype(np.float64))]
    else:
        centred = np.clip(places - 0.5, 0, patches - 1)
        lower = np.floor(centred)
        upper = np.minimum(lower + 1, patches - 1)
        shares = [(lower, (1 - (centred - lower)) * inside), (upper, (centred - lower) * inside)]
    for patch, share in shares:
        chosen = patch[inside].astype(np.int64)
        weights[np.flatnonzero(inside), chosen] += share[inside]
    return weights


@dataclass(frozen=True)
class MapPart:
    """Requested part of each map."""

    queries: tuple[int, ...] | None = None
    """Rows in order, negative from the end of each text; None for all."""
    keys: tuple[int, ...] | None = None
    """Columns in order, negative from the end of each text; None for all."""
    max_size: int | None = None
    """Maximum rows and columns, beyond which a map is pooled; None for no limit."""
    enlarge: Resampling | None = None
    """Resampling of each row of a picture's map to the picture's pixels; None for patches."""

    @property
    def chosen(self) -> bool:
        """Whether queries or keys are selected."""
        return self.queries is not None or self.keys is not None

    def shape(self, queries: int, keys: int, view: PictureView | None = None) -> tuple[int, ...]:
        """Return the shape of the part of a map with as many queries and keys.

        An enlarged map of a picture has rows, height and width.
        """
        rows = queries if self.queries is None else len(self.queries)
        if self.enlarge and view:
            width, height = view.size
            return rows, height, width
        columns = keys if self.keys is None else len(self.keys)
        most = self.max_size or max(rows, columns)
        return min(rows, most), min(columns, most)

    def rows(self, maps: Maps) -> Maps:
        """Select the queries of maps, over all keys: `[…, T, S]` → `[…, Q, S]`."""
        return taken(maps, self.queries, -2)

    def of(self, maps: Maps, view: PictureView | None = None) -> Maps:
        """Return the part of maps: `[…, T, S]` → `[…, min(Q, P), min(K, P)]`.

        Enlarged maps of a picture are `[…, Q, height, width]`.
        """
        if self.enlarge and view:
            return enlarged(self.rows(maps), view, self.enlarge)
        part = taken(self.rows(maps), self.keys, -1)
        if self.max_size is None or self.max_size >= max(part.shape[-2:]):
            return part
        return max_pooled(part, self.max_size)


WHOLE = MapPart()


def indices_of(asked: tuple[int, ...], size: int) -> Indices:
    """Return token indices as non-negative numbers below `size`."""
    return (np.array(asked, np.int64) % size).astype(np.int32)


def taken(maps: Maps, asked: tuple[int, ...] | None, axis: int) -> Maps:
    """Select token indices of an axis of maps, C-contiguous; None selects all."""
    return maps if asked is None else maps.take(indices_of(asked, maps.shape[axis]), axis=axis)


@functools.lru_cache(2**10)
def bins(size: int, most: int) -> Indices:
    """Return the start and end of each of min(S, P) bins of an axis, as torch's adaptive pooling.

    Bin i of n ranges from ⌊i·S / n⌋ to ⌈(i + 1)·S / n⌉, exclusive: neighbours share a place if n
    does not divide S. Shape: `[min(S, P), 2]`, read-only since it is cached.
    """
    count = min(size, most)
    edges = np.arange(count + 1, dtype=np.int64) * size
    starts, ends = edges[:-1] // count, -(-edges[1:] // count)
    ranges = np.stack([starts, ends], axis=1).astype(np.int32)
    ranges.setflags(write=False)
    return ranges


def max_pooled(maps: Maps, most: int) -> Maps:
    """Return the largest weight of each bin of queries and keys, as `torch.nn.AdaptiveMaxPool2d`.

    Heads are pooled one by one, so that intermediate results stay in the cache.

    Shape: `[…, T, S]` → `[…, min(T, P), min(S, P)]`.
    """
    queries, keys = (bins(size, most) for size in maps.shape[-2:])
    pooled = np.empty((*maps.shape[:-2], len(queries), len(keys)), np.float32)
    heads = maps.reshape(-1, *maps.shape[-2:]), pooled.reshape(-1, *pooled.shape[-2:])
    for head, small in zip(*heads, strict=True):
        small[...] = _maxima(_maxima(head, queries, 0), keys, 1)
    return pooled


def _maxima(weights: Maps, edges: Indices, axis: int) -> Maps:
    """Return the maxima of the bins of an axis, whose length becomes the number of bins.

    Bins have at most two lengths. The j-th places of all bins are taken together, and shorter bins
    repeat their last place. `np.maximum.reduceat` takes eight times as long.
    """
    starts, ends = edges.T
    maxima = weights.take(starts, axis=axis)
    other = np.empty_like(maxima)
    for place in range(1, int((ends - starts).max())):
        at = np.minimum(starts + place, ends - 1)
        weights.take(at, axis=axis, out=other, mode="clip")  # "raise" would buffer the output
        np.maximum(maxima, other, out=maxima)
    return maxima
