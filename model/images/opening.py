"""Opening of picture files by Pillow, as transformers' `load_image` opens them.

The format is found in the content. The number of pixels is in the header, and is checked before
anything is decoded. The functions may run in any thread.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageCms,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    WebPImagePlugin,
)

from model.errors import ImageError
from model.images.steps import count_steps, format_of

warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")  # a line for each damaged tag

MOST_PIXELS = 2**30 // 12
"""Highest limit on the pixels of a picture: Pillow warns of a decompression bomb above it."""
DECODING_BYTES = 16
"""Maximum bytes of memory of a pixel while a picture is opened: WebP; others take 8, or 10 with a
palette."""
MOST_SCANS = 32
"""Maximum scans of a JPEG file. Progressive files have about 10; each costs a pass over all pixels
and may take only a few bytes."""
PLUGINS = (BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)
"""Modules that register the formats with Pillow."""
_START_OF_SCAN = b"\xff\xda"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits on a picture."""

    max_pixels: int
    """Maximum width × height, at most `MOST_PIXELS`."""
    first_frame: bool = False
    """Whether an animated picture stands for its first frame, and is not refused."""


def open_image(data: bytes, limits: ImageLimits) -> Image.Image:
    """Decode a picture to RGB, turned as its EXIF orientation says.

    Transparency is dropped and colour profiles are ignored, as transformers does, except for CMYK,
    which is converted by its profile. 16-bit grey keeps the upper 8 bits. The file is PNG, JPEG,
    WebP, GIF or BMP.

    Raises:
        ImageError: the file is not accepted, or is damaged.

    """
    with _opened(data, limits) as opened:
        opened.load()
        opened.getexif()
        for metadata in ("exif", "Raw profile type exif"):  # all tags would be written again
            opened.info.pop(metadata, None)
        ImageOps.exif_transpose(opened, in_place=True)
        return _in_rgb(opened)


def read_size(data: bytes, limits: ImageLimits) -> tuple[int, int]:
    """Return width and height from the head of a file, without decoding its pixels.

    Raises:
        ImageError: the file is not accepted, or its head is damaged.

    """
    with _opened(data, limits) as opened:
        return opened.size


@contextlib.contextmanager
def _opened(data: bytes, limits: ImageLimits) -> Iterator[Image.Image]:
    """Open a picture within its limits; convert Pillow's errors, also of the block."""
    name = format_of(data)
    count_steps(data)
    try:
        with Image.open(BytesIO(data), formats=[name.upper()]) as opened:
            _check(opened, data, name, limits)
            yield opened
    except (ImageError, MemoryError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(_too_large(limits)) from None
    except Exception as error:  # Pillow raises a dozen types for damaged files
        raise ImageError(f"the {name} file is truncated or damaged; send the whole file") from error


def _too_large(limits: ImageLimits) -> str:
    return f"the picture has more than {limits.max_pixels} pixels; send a smaller one"


def _check(opened: Image.Image, data: bytes, name: str, limits: ImageLimits) -> None:
    """Raise ImageError for a picture that must not be decoded."""
    if opened.width * opened.height > limits.max_pixels:
        raise ImageError(_too_large(limits))
    if name == "JPEG":  # further pictures in the file, of cameras, are not an animation
        if data.count(_START_OF_SCAN) > MOST_SCANS:
            raise ImageError(
                f"the JPEG file has more than {MOST_SCANS} scans; save it as a baseline JPEG"
            )
    elif not limits.first_frame and getattr(opened, "is_animated", False):
        raise ImageError(
            f"the {name} file is animated; send one frame, or set `first_frame` to true"
        )


def _in_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "CMYK":
        return _from_cmyk(image)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_cmyk(image: Image.Image) -> Image.Image:
    """Convert by the embedded profile, with the rendering intent that it names."""
    embedded = image.info.get("icc_profile")
    if embedded is None:
        raise ImageError(
            "the JPEG file has CMYK colours and no colour profile; convert it to RGB, or embed its "
            "profile"
        )
    try:
        profile = ImageCms.ImageCmsProfile(BytesIO(embedded))
        intent = ImageCms.Intent(ImageCms.getDefaultIntent(profile))
        srgb = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, profile, srgb, intent, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        raise ImageError(
            "the colour profile of the JPEG file is damaged, or not for CMYK; convert it to RGB"
        ) from error
    if converted is None:
        raise ImageError("the colours of the JPEG file cannot be converted; convert it to RGB")
    return converted
