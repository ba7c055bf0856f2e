"""Synthetic pictures with the statistics of photographs.

A scene is a pile of discs that hide one another, each of one colour with a gradient, and radii r
with a density of r⁻³: its edges and its spectrum resemble those of photographs (the dead leaves
model: Lee, Mumford and Huang 2001, https://doi.org/10.1023/A:1011109015675). numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from model.config.encoder import PatchLayout
from model.images.patches import patch_rows
from model.images.processing import ImageProcessing
from model.numerics.batch import Floats

CALIBRATION, SIMILARITY = 32, 16
"""Number of scenes for calibration, and of groups of three pictures for similarity."""
_DISCS = 300
_COLOURFULNESS = 0.12
"""Standard deviation of a disc's colour around its grey."""


class PictureScenes:
    """Seeded pictures of an encoder, as pixels `[S, F]` of its tokens."""

    def __init__(self, patches: PatchLayout, processing: ImageProcessing) -> None:
        self._patches, self._processing = patches, processing
        self._shape = patches.rows * patches.size, patches.columns * patches.size, patches.channels
        self.input_ids = patches.token_ids

    def calibration(self, count: int = CALIBRATION) -> Iterator[Floats]:
        """Yield scenes."""
        for seed in range(count):
            yield self._tokens(scene(self._shape, seed))

    def similarity(self) -> Iterator[Floats]:
        """Yield each scene, its mirror image in less light, and a blend with another scene."""
        for seed in range(CALIBRATION, CALIBRATION + SIMILARITY):
            own, other = scene(self._shape, seed), scene(self._shape, seed + SIMILARITY)
            for picture in (own, 0.7 * own[:, ::-1], 0.6 * own + 0.4 * other):
                yield self._tokens(picture)

    def unusual(self) -> Iterator[Floats]:
        """Yield black, white, a bright pixel, a chessboard of pixels, and an upturned scene."""
        black = np.zeros(self._shape, np.float32)
        bright, board = black.copy(), black.copy()
        bright[self._shape[0] // 2, self._shape[1] // 2] = 1
        board[::2, ::2] = board[1::2, 1::2] = 1
        for picture in (black, black + 1, bright, board, scene(self._shape, 0)[::-1]):
            yield self._tokens(picture)

    def noise(self, generator: np.random.Generator) -> Floats:
        """Return normally distributed pixel values."""
        values = generator.standard_normal(self._shape, np.float32)
        return self._rows(values.transpose(2, 0, 1))

    def _tokens(self, picture: Floats) -> Floats:
        """Return the pixels of a picture `[h, w, C]` with values 0 … 1."""
        processing = self._processing
        values = picture * (255 * (processing.rescale_factor or 1))
        if processing.mean is not None and processing.std is not None:
            values = (values - np.array(processing.mean)) / np.array(processing.std)
        return self._rows(values.transpose(2, 0, 1).astype(np.float32))

    def _rows(self, values: Floats) -> Floats:
        special = np.zeros((len(self._patches.special_tokens), self._patches.features), np.float32)
        return np.concatenate((special, patch_rows(values, self._patches.size)))


def scene(shape: tuple[int, int, int], seed: int) -> Floats:
    """Return a scene `[h, w, C]` with values 0 … 1."""
    generator = np.random.default_rng(seed)
    height, width, channels = shape
    largest = max(height, width) / 2
    smallest = max(largest / 15, 0.5)
    picture = np.full(shape, generator.uniform(0.2, 0.8), np.float32)
    shares = generator.uniform(0, 1, _DISCS)
    radii = smallest / np.sqrt(1 - shares * (1 - (smallest / largest) ** 2))
    for radius in radii:
        y, x = generator.uniform(0, height), generator.uniform(0, width)
        grey = generator.uniform(0, 1)
        colour = grey + _COLOURFULNESS * generator.standard_normal(channels)
        slope = generator.normal(0, 0.1, 2) / radius
        top, bottom = max(int(y - radius), 0), min(int(y + radius) + 1, height)
        left, right = max(int(x - radius), 0), min(int(x + radius) + 1, width)
        down, across = np.arange(top, bottom)[:, None] - y, np.arange(left, right)[None] - x
        inside = down**2 + across**2 <= radius**2
        shade = (slope[0] * down + slope[1] * across)[..., None] + colour
        picture[top:bottom, left:right][inside] = shade[inside]
    picture += generator.normal(0, 0.02, shape)
    return picture.clip(0, 1)
