"""Pixel values of a picture, equal to the Pillow backend of transformers' image processors.

A picture of 10,000 × 3 pixels becomes 746,666 × 224 where its shorter side becomes 224. Such a
picture is resized along one axis at a time, in strips, and only what the centre crop needs is kept.
The values are the same: Pillow (13) does the same, rounding to 8 bits between the axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from model.errors import ImageError
from model.images.processing import ImageProcessing

MOST_SIDE = 1_000_000
"""Maximum pixels of a resized side: 10,000 × 3 at 224 pixels is 746,666 wide."""
STRIP_PIXELS = 2**24
"""Maximum pixels of a resized picture or strip before the crop: 64 MiB, of which two may exist."""


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """Pixel values of a picture, and the part of the picture that they show."""

    values: NDArray[np.float32]
    """`[3, height, width]`, red, green and blue."""
    size: tuple[int, int]
    """Width and height of the picture as displayed."""
    crop: tuple[float, float, float, float]
    """Left, top, right and bottom of the visible part, in pixels of the picture; outside of the
    picture where it was padded."""


@dataclass(frozen=True, slots=True)
class _Side:
    """Resized pixels of one side, and the range that the crop keeps."""

    pixels: int
    resized: int
    start: int
    end: int

    def kept(self) -> tuple[int, int]:
        """Return the ends of the range without padding."""
        return max(self.start, 0), min(self.end, self.resized)

    def padding(self) -> tuple[int, int]:
        """Return the numbers of pixels to pad before and after."""
        return max(-self.start, 0), max(self.end - self.resized, 0)

    def visible(self) -> tuple[float, float]:
        """Return the ends of the range in pixels of the picture."""
        scale = self.pixels / self.resized
        return self.start * scale, self.end * scale


def prepare(image: Image.Image, processing: ImageProcessing) -> PreparedImage:
    """Resize, crop, rescale and normalise a picture.

    Raises:
        ImageError: one side is so much longer than the other that it cannot be resized.

    """
    across, down = _sides(image.size, processing)
    resized = _resize(image, across, down, Image.Resampling(processing.resample))
    padded = np.pad(np.asarray(resized), (down.padding(), across.padding(), (0, 0)))
    values = _normalize(padded, processing)
    (left, right), (top, bottom) = across.visible(), down.visible()
    return PreparedImage(values, image.size, (left, top, right, bottom))


def resizing_bytes(size: tuple[int, int], processing: ImageProcessing) -> int:
    """Return the maximum bytes of memory that `prepare` takes beside the picture.

    Raises:
        ImageError: as `prepare`.

    """
    across, down = _sides(size, processing)
    (left, right), (top, bottom) = across.kept(), down.kept()
    if across.resized * down.resized <= STRIP_PIXELS:
        between = max(across.resized * down.pixels, across.pixels * down.resized)
        pixels = between + 2 * across.resized * down.resized
    else:
        between = max((right - left) * down.pixels, across.pixels * (bottom - top))
        pixels = 2 * (across.pixels * down.pixels + between + STRIP_PIXELS)
    height, width = processing.size
    return 4 * pixels + 16 * height * width


def _sides(size: tuple[int, int], processing: ImageProcessing) -> tuple[_Side, _Side]:
    """Return both sides: across and down."""
    width, height = size
    new_height, new_width = processing.resize or (height, width)
    if edge := processing.shortest_edge:
        longer = int(edge * max(width, height) / min(width, height))
        new_height, new_width = (longer, edge) if width <= height else (edge, longer)
    if max(new_height, new_width) > MOST_SIDE:
        raise ImageError(
            "one side of the picture is too many times longer than the other; crop the picture"
        )
    crop_height, crop_width = processing.crop or (new_height, new_width)
    return _cropped(width, new_width, crop_width), _cropped(height, new_height, crop_height)


def _cropped(pixels: int, resized: int, crop: int) -> _Side:
    """Return a side with the range of the centre crop, which padding may extend.

    A picture that is smaller than the crop is padded by one pixel more before than after, if the
    number is odd (transformers' `center_crop`).
    """
    start = (resized - crop) // 2
    return _Side(pixels, resized, start, start + crop)


def _resize(
    image: Image.Image, across: _Side, down: _Side, resample: Image.Resampling
) -> Image.Image:
    """Resize a picture, and crop it."""
    if across.resized * down.resized <= STRIP_PIXELS:
        (left, right), (top, bottom) = across.kept(), down.kept()
        whole = image.resize((across.resized, down.resized), resample)
        return whole.crop((left, top, right, bottom))
    turn = Image.Transpose.TRANSPOSE
    fewer_rows, fewer_columns = (side.pixels - side.resized for side in (down, across))
    if fewer_rows > max(0, 2 * fewer_columns):  # Pillow's rule for the first axis
        columns = _resize_rows(image.transpose(turn), down, resample)
        return _resize_rows(columns.transpose(turn), across, resample)
    rows = _resize_rows(image, across, resample)
    return _resize_rows(rows.transpose(turn), down, resample).transpose(turn)


def _resize_rows(image: Image.Image, side: _Side, resample: Image.Resampling) -> Image.Image:
    """Resize the rows of a picture in strips, and crop them."""
    left, right = side.kept()
    result = Image.new("RGB", (right - left, image.height))
    rows = max(1, STRIP_PIXELS // max(side.pixels, side.resized))
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        strip = image.crop((0, top, side.pixels, bottom))
        resized = strip.resize((side.resized, bottom - top), resample)
        result.paste(resized.crop((left, 0, right, bottom - top)), (0, top))
    return result


def _normalize(pixels: NDArray[np.uint8], processing: ImageProcessing) -> NDArray[np.float32]:
    """Rescale and normalise by a table of the 256 values of a channel.

    transformers rescales in float64 and normalises in float32. `[height, width, 3]` → `[3, height,
    width]`.
    """
    values = np.arange(256, dtype=np.float64)
    if processing.rescale_factor is not None:
        values = values * processing.rescale_factor
    table = np.repeat(values.astype(np.float32)[None], 3, axis=0)
    if processing.mean is not None and processing.std is not None:
        mean, std = (np.array(c, np.float32)[:, None] for c in (processing.mean, processing.std))
        table = (table - mean) / std
    return np.stack([table[channel][pixels[..., channel]] for channel in range(3)])


def sample_file(edge: int) -> bytes:
    """Return a JPEG file of soft random colours, the same in each call."""
    small = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(small).resize((edge, edge), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()
