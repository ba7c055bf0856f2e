"""Pixel values against transformers' Pillow image processors of all five families."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers.image_processing_backends import PilBackend
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from model.errors import ImageError
from model.images.opening import ImageLimits, open_image
from model.images.pixels import prepare, resizing_bytes
from model.images.processing import ImageProcessing, read_processing
from testing.pictures import grey_of_16_bits, kinds, pixels, saved

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


def test_grey_of_16_bits_is_its_upper_bytes() -> None:
    """transformers takes every value above 255 for white."""
    processing = ImageProcessing(resize=(32, 48), rescale_factor=1 / 255)
    upper = saved(Image.fromarray(pixels()[..., 0].copy()), "PNG")
    expected, found = (
        prepare(open_image(data, ImageLimits(1_000_000)), processing).values
        for data in (upper, grey_of_16_bits())
    )
    np.testing.assert_array_equal(found, expected)


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
