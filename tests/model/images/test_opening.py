"""Pictures that are opened, against Pillow and transformers, and those that are refused."""

from __future__ import annotations

import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image

from model.errors import ImageError
from model.images.opening import MOST_PIXELS, MOST_SCANS, ImageLimits, open_image
from testing.pictures import (
    animated,
    cmyk,
    grey_of_16_bits,
    grey_profile,
    kinds,
    pixels,
    png,
    saved,
)

LIMITS = ImageLimits(max_pixels=1_000_000)
BOMBS = {
    "PNG": png(60_000, 60_000, 8, 2),
    "GIF": b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x02\x00;",
    "WebP": bytes.fromhex("524946461a000000574542505650384c0e0000002ffeffff0f071011fd0f4444ff03"),
    "PNG below Pillow's limit": png(2_000, 501, 8, 0),
}


def opened(data: bytes, limits: ImageLimits = LIMITS) -> np.ndarray:
    return np.asarray(open_image(data, limits))


@pytest.mark.filterwarnings("ignore:Palette images")  # of transformers
def test_pictures_open_as_in_transformers() -> None:
    for name, data in kinds().items():
        expected = np.asarray(load_image(b64encode(data).decode()))
        np.testing.assert_array_equal(opened(data), expected, name)


def test_many_threads_open_the_same_pictures() -> None:
    files = [data for name, data in kinds().items() if "10,000" not in name]
    alone = [opened(data) for data in files]
    with ThreadPoolExecutor(8) as pool:
        for together in pool.map(lambda _: [opened(data) for data in files], range(16)):
            for expected, found in zip(alone, together, strict=True):
                np.testing.assert_array_equal(found, expected)


def test_grey_of_16_bits_keeps_its_upper_bytes() -> None:
    red = pixels()[..., 0]
    np.testing.assert_array_equal(opened(grey_of_16_bits()), np.stack([red] * 3, axis=-1))


def test_cmyk_is_converted_by_its_profile() -> None:
    luminance = ((128 / 2.55 + 16) / 116) ** 3
    expected = 255 * (1.055 * luminance ** (1 / 2.4) - 0.055)  # sRGB, IEC 61966-2-1
    np.testing.assert_allclose(opened(cmyk(grey_profile())), expected, atol=3)


@pytest.mark.parametrize("profile", [None, b"damaged", grey_profile()[:-700]])
def test_cmyk_without_a_profile_is_refused(profile: bytes | None) -> None:
    with pytest.raises(ImageError, match="convert it to RGB"):
        opened(cmyk(profile))


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_decoding(name: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ImageError, match="more than 1000000 pixels; send a smaller one"):
        opened(BOMBS[name])
    assert time.perf_counter() - started < 0.05


def test_the_highest_limit_is_pillows_own() -> None:
    assert MOST_PIXELS == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_animated_pictures_need_to_be_asked_for(kind: str) -> None:
    with pytest.raises(ImageError, match="set `first_frame` to true"):
        opened(animated(kind))
    first = opened(animated(kind), ImageLimits(1_000_000, first_frame=True))
    assert np.abs(first.astype(int) - pixels()).mean() < 16  # and not half as bright


def test_further_pictures_of_a_camera_are_not_an_animation() -> None:
    np.testing.assert_array_equal(
        opened(animated("MPO")), opened(saved(Image.fromarray(pixels()), "JPEG"))
    )


def test_too_many_scans_are_refused() -> None:
    data = saved(Image.fromarray(pixels()), "JPEG")
    with pytest.raises(ImageError, match="scans"):
        opened(data[:-2] + b"\xff\xda" * MOST_SCANS + data[-2:])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.9])
def test_truncated_files_are_refused(kind: str, part: float) -> None:
    data = saved(Image.fromarray(pixels()), kind)
    with pytest.raises(ImageError, match=r"truncated or damaged|more than"):
        opened(data[: max(9, int(len(data) * part))])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        saved(Image.fromarray(pixels()), "TIFF"),
        saved(Image.fromarray(pixels()), "PPM"),
    ],
)
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(ImageError, match="not a PNG, JPEG, WebP, GIF or BMP picture"):
        opened(data)
