"""Maps enlarged to the pixels of a picture, against torch and Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from service.inference.attention.map_parts import MapPart
from service.inference.pictures.enlarged import Enlargement, Resampling
from service.inference.tokenization.tokenized import PictureView

GRID, SIZE = (3, 5), (41, 20)
MAPS = np.random.default_rng(0).random((2, 4, 1 + 15), np.float32)
PATCHES = MAPS[..., 1:].reshape(2, 4, *GRID)


def torchs(patches: Any, height: int, width: int, mode: Resampling) -> Any:
    corners = {} if mode == "nearest" else {"align_corners": False}
    resized = torch.nn.functional.interpolate(
        torch.from_numpy(patches),
        (height, width),
        mode="nearest-exact" if mode == "nearest" else mode,
        **corners,
    )
    return resized.numpy()


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_the_whole_picture_is_as_torch_and_pillow_resize_it(mode: Resampling) -> None:
    width, height = SIZE
    enlarge = Enlargement(PictureView(GRID, SIZE, (0, 0, width, height)), mode)
    found = enlarge(MAPS)
    assert found.dtype == np.float32
    assert found.shape[2:] == enlarge.shape == (height, width)
    np.testing.assert_allclose(found, torchs(PATCHES, height, width, mode), atol=1e-6)
    resample = Image.Resampling[mode.upper()]
    pillows = Image.fromarray(PATCHES[1, 2]).resize(SIZE, resample)
    np.testing.assert_allclose(found[1, 2], np.array(pillows), atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_crop_has_zeros_around_it(mode: Resampling) -> None:
    enlarge = Enlargement(PictureView(GRID, SIZE, (6, 2, 36, 17)), mode)
    wanted = np.zeros((2, 4, 20, 41), np.float32)
    wanted[..., 2:17, 6:36] = torchs(PATCHES, 15, 30, mode)
    np.testing.assert_allclose(enlarge(MAPS), wanted, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_crop_may_exceed_the_picture(mode: Resampling) -> None:
    """A picture that is smaller than the crop is padded, so that its pixels are a part of it."""
    enlarge = Enlargement(PictureView(GRID, (4, 3), (-3, -2, 12, 7)), mode)
    wanted = torchs(PATCHES, 9, 15, mode)[..., 2:5, 3:7]
    np.testing.assert_allclose(enlarge(MAPS), wanted, atol=1e-6)


def test_a_crop_between_pixels_holds_the_pixels_with_their_centre_in_it() -> None:
    found = Enlargement(PictureView((1, 2), (6, 2), (0.75, 0, 4.5, 1.4)), "nearest")(
        np.array([[0.25, 0.75]], np.float32)
    )
    assert found[0].tolist() == [[0, 0.25, 0.25, 0.75, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_a_part_of_a_map_is_enlarged_row_by_row() -> None:
    view = PictureView(GRID, SIZE, (0, 0, *SIZE))
    maps = np.random.default_rng(1).random((2, 16, 16), np.float32)
    part = MapPart((0, -1), enlarge="bilinear")
    found = part.of(maps, view)
    np.testing.assert_array_equal(found, Enlargement(view, "bilinear")(maps[:, [0, 15]]))
    assert part.shape(16, 16, view) == found.shape[1:]
