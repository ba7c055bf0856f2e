"""Attention maps over the patches of a picture, enlarged to the pixels of the picture.

Notation: `…` any leading axes, S tokens of a picture, R rows and C columns of its patches, W and
H width and height of the picture in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.engines.contract import Floats
from service.inference.tokenization.tokenized import PictureView

Resampling = Literal["nearest", "bilinear"]
"""Value of a pixel: the value of its patch, or a mean of the four nearest patches."""


@dataclass(frozen=True)
class Enlargement:
    """Enlargement of maps over a picture's tokens to its pixels."""

    view: PictureView
    resampling: Resampling

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of an enlarged map."""
        width, height = self.view.size
        return height, width

    def __call__(self, maps: Floats) -> Floats:
        """Return maps over pixels, `[…, S]` → `[…, H, W]`: 0 outside the crop.

        The weights of special tokens have no place in the picture and are left out. Bilinear
        interpolation is torch's with `align_corners=False`: the centre of a patch has the patch's
        value, and beyond the outermost centres the value stays the same up to the crop's edge.
        """
        (rows, columns), (left, top, right, bottom) = self.view.grid, self.view.crop
        height, width = self.shape
        patches = maps[..., -rows * columns :].reshape(*maps.shape[:-1], rows, columns)
        down = axis_weights(rows, height, (top, bottom), self.resampling)
        across = axis_weights(columns, width, (left, right), self.resampling)
        enlarged: Floats = np.matmul(down, np.matmul(patches, across.T))
        return enlarged


def axis_weights(
    patches: int, pixels: int, crop: tuple[float, float], resampling: Resampling
) -> Floats:
    """Return the weight of each patch in each pixel of an axis, `[pixels, patches]`.

    Args:
        patches: number of patches along the axis.
        pixels: size of the picture along the axis.
        crop: start and end of the patches in pixels.
        resampling: kind of interpolation.

    Returns:
        Rows that sum to 1, and rows of zeros for pixels whose centre is outside the crop.

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
