"""Opened pictures and their pixels, against Pillow, PyTorch and transformers' image processors."""

from __future__ import annotations

import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import load_image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from model.errors import ImageError
from model.images.opening import MOST_PIXELS, MOST_SCANS, ImageLimits, open_image, read_size
from model.images.pixels import prepare, resizing_bytes, sample_file
from model.images.processing import ImageProcessing, patch_rows, read_processing
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

KINDS = kinds()
SMALL = {"height": 32, "width": 48}
PROCESSORS: dict[str, PilBackend] = {
    "ViT": ViTImageProcessorPil(),
    "DeiT": DeiTImageProcessorPil(),
    "DINOv2": BitImageProcessorPil(size={"shortest_edge": 256}),
    "CLIP": CLIPImageProcessorPil(),
    "SigLIP": SiglipImageProcessorPil(size=SMALL),
    "padded": CLIPImageProcessorPil(size={"shortest_edge": 21}, crop_size=SMALL),
    "cropped alone": CLIPImageProcessorPil(do_resize=False, crop_size={"height": 50, "width": 51}),
    "nearest": ViTImageProcessorPil(size=SMALL, resample=0, do_normalize=False),
    "not rescaled": DeiTImageProcessorPil(resample=1, do_rescale=False),
}


@pytest.mark.filterwarnings("ignore:Palette images")  # of transformers
@pytest.mark.parametrize("name", PROCESSORS)
def test_values_equal_transformers(name: str, tmp_path: Path) -> None:
    """transformers opens the file itself, with `load_image`."""
    PROCESSORS[name].save_pretrained(tmp_path)
    processing = read_processing(tmp_path)
    for kind, data in KINDS.items():
        if "10,000" in kind and name != "padded":
            continue  # transformers takes more than 1 GB for them at 224 pixels
        expected = PROCESSORS[name](images=b64encode(data).decode(), return_tensors="np")
        prepared = prepare(open_image(data, ImageLimits(1_000_000)), processing)
        assert prepared.values.dtype == np.float32
        assert prepared.values.shape[1:] == processing.size
        np.testing.assert_allclose(
            prepared.values, expected["pixel_values"][0], rtol=0, atol=1e-6, err_msg=kind
        )


def test_the_crop_is_in_pixels_of_the_picture() -> None:
    processing = ImageProcessing(shortest_edge=20, crop=(20, 10))
    prepared = prepare(Image.new("RGB", (80, 40)), processing)  # half as large after resizing
    assert prepared.size == (80, 40)
    assert prepared.crop == (30, 0, 50, 40)
    padded = prepare(Image.new("RGB", (4, 4)), ImageProcessing(crop=(6, 7)))
    assert padded.crop == (-2, -1, 5, 5)  # one pixel more before than after


def test_a_side_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(ImageError, match="crop the picture"):
        prepare(Image.new("RGB", (10_000, 1)), ImageProcessing(shortest_edge=224, crop=(224, 224)))


def test_bytes_of_resizing_are_bounded_by_strips() -> None:
    """A photograph of 12 megapixels, and 10,000 × 3, which transformers resizes in 1.6 GB."""
    processing = ImageProcessing(shortest_edge=224, crop=(224, 224))
    photograph = 4000 * 224 + 2 * 298 * 224
    assert resizing_bytes((4000, 3000), processing) == 4 * photograph + 16 * 224**2
    assert resizing_bytes((10_000, 3), processing) < 160 * 2**20


@pytest.mark.parametrize("resample", range(6))
def test_strips_make_no_difference(resample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow begins with the rows or with the columns, whichever is faster."""
    sizes = np.random.default_rng(5).integers(1, 60, (60, 4)).tolist()
    pictures = [
        (Image.fromarray(pixels(width, height)), ImageProcessing(resize=size, resample=resample))
        for width, height, *size in sizes
    ]
    pictures += [
        (image, ImageProcessing(shortest_edge=70, crop=(9, 9), resample=resample))
        for image, _ in pictures[:10]
    ]
    whole = [prepare(*picture).values for picture in pictures]
    monkeypatch.setattr("model.images.pixels.STRIP_PIXELS", 70)
    for expected, picture in zip(whole, pictures, strict=True):
        np.testing.assert_array_equal(prepare(*picture).values, expected)


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


def test_rows_times_the_weight_are_the_convolution() -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(
        (3, 11, 17), dtype=np.float32
    )  # 2 × 4 patches of 4, and remainders
    weight = rng.standard_normal((5, 3, 4, 4), dtype=np.float32)
    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (values[None], weight)), stride=4)
    found = patch_rows(values, 4) @ weight.reshape(5, -1).T
    assert found.shape == (8, 5)
    np.testing.assert_allclose(found, expected[0].flatten(1).T.numpy(), atol=1e-5)


def test_it_is_the_same_picture_each_time() -> None:
    data = sample_file(64)
    assert data == sample_file(64)
    limits = ImageLimits(64 * 64)
    assert read_size(data, limits) == open_image(data, limits).size == (64, 64)
