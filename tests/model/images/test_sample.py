"""Picture for measurements."""

from __future__ import annotations

from model.images.opening import ImageLimits, open_image, read_size
from model.images.sample import sample_file


def test_it_is_the_same_picture_each_time() -> None:
    data = sample_file(64)
    assert data == sample_file(64)
    limits = ImageLimits(64 * 64)
    assert read_size(data, limits) == open_image(data, limits).size == (64, 64)
