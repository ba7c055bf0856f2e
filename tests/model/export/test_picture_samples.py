"""Synthetic pictures: repeatable, within the range of pixels, and like photographs."""

from __future__ import annotations

import numpy as np
import pytest

from model.config.encoder import PatchLayout
from model.export.samples import PictureScenes, scene
from model.images.processing import ImageProcessing

SHAPE = (96, 128, 3)
LAYOUT = PatchLayout(size=8, rows=2, columns=3, special_tokens=("[CLS]", "[DIST]"))
PROCESSING = ImageProcessing(
    resize=(16, 24), rescale_factor=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.5, 0.2, 0.1)
)


def test_a_scene_is_the_same_every_time_and_another_with_each_seed() -> None:
    assert np.array_equal(scene(SHAPE, 3), scene(SHAPE, 3))
    assert not np.array_equal(scene(SHAPE, 3), scene(SHAPE, 4))
    assert scene(SHAPE, 3).min() >= 0
    assert scene(SHAPE, 3).max() <= 1


def test_power_falls_with_frequency_as_in_photographs() -> None:
    """Field 1987: amplitudes of photographs fall as 1 / f, so their power falls as f⁻²."""
    powers = [np.abs(np.fft.rfft2(scene(SHAPE, seed).mean(axis=2))) ** 2 for seed in range(8)]
    across = np.mean(powers, axis=0)[0]
    frequencies = np.arange(2, 40)
    slope = np.polyfit(np.log(frequencies), np.log(across[frequencies]), 1)[0]
    assert slope == pytest.approx(-2, abs=0.7)


def test_pixels_are_normalised_and_cut_row_by_row() -> None:
    scenes = PictureScenes(LAYOUT, PROCESSING)
    black, white, *_ = scenes.unusual()
    assert black.shape == (8, 3 * 8 * 8)
    assert scenes.input_ids == [1, 2, 0, 0, 0, 0, 0, 0]
    assert not black[:2].any()
    expected = np.repeat([-1, -2, -3], 64)  # (0 − mean) / std of each channel
    np.testing.assert_allclose(black[2:], np.broadcast_to(expected, (6, 192)), rtol=1e-6)
    np.testing.assert_allclose(white[2:], np.tile(np.repeat([1, 3, 7], 64), (6, 1)), rtol=1e-6)


def test_pictures_of_a_group_resemble_each_other() -> None:
    pictures = [pixels.ravel() for pixels in PictureScenes(LAYOUT, PROCESSING).similarity()]
    correlations = np.corrcoef(pictures)
    blends = correlations[range(0, 48, 3), range(2, 48, 3)]
    assert blends.mean() > np.median(correlations) + 0.2
