"""Steps of opening follow Pillow's reads, and are limited by the bytes of a file."""

from __future__ import annotations

import subprocess
import sys
import time
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from model.errors import ImageError
from model.images.opening import ImageLimits, open_image, read_size
from model.images.steps import MOST_STEPS, count_steps
from testing.damaged_pictures import damaged
from testing.pictures import animated, crowded, kinds, pixels, png, saved, turned

LIMITS = ImageLimits(10**6)
READS = 20
"""Maximum calls of `read` by Pillow in a step: 16 in eight sub-blocks of a GIF file."""
MEGABYTES = crowded(2**21)


@pytest.mark.parametrize("name", MEGABYTES)
def test_files_of_many_parts_are_refused_at_once(name: str) -> None:
    began = time.process_time()
    for opening in (read_size, open_image):
        with pytest.raises(ImageError, match=r"takes more than \d{4} steps; save it again"):
            opening(MEGABYTES[name], LIMITS)
    assert time.process_time() - began < 0.5


class Counted(BytesIO):
    """File that counts its reads."""

    reads = 0

    def read(self, *arguments: Any) -> bytes:
        """Count a call."""
        self.reads += 1
        return super().read(*arguments)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of damaged metadata
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_steps_follow_the_reads_of_pillow(kind: str) -> None:
    whole = [data for name, data in crowded(2**13).items() if name.startswith(kind)]
    for seed in range(400):
        data = damaged(whole, seed) if seed >= len(whole) else whole[seed]
        file = Counted(data)
        try:
            with Image.open(file, formats=[kind]) as opened:
                assert getattr(opened, "is_animated", False) in (True, False)
                opened.load()
            steps = count_steps(data)
        except Exception:  # Pillow's errors of damaged files
            continue
        assert file.reads <= READS * steps + 300, seed


def of_frames(kind: str, count: int) -> bytes:
    """Return an animated file of small frames."""
    frames = [Image.fromarray(pixels(6, 4) ^ np.uint8(n % 8)) for n in range(count)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:])


def test_files_of_cameras_and_animations_are_opened() -> None:
    photo = saved(Image.fromarray(pixels()), "JPEG")
    part = b"\xff\xe1\xfd\xe8" + b"http://ns.adobe.com/xmp/extension/\0" + bytes(64_963)
    exif = b"\xff\xe1\xff\xfe" + b"Exif\0\0" + turned(6)[30:] + bytes(70_000)
    wide = np.random.default_rng(0).integers(0, 256, (1000, 1000), np.uint8)
    files = [
        *kinds().values(),
        photo[:2] + part * 300 + photo[2:],
        photo[:2] + exif[: 2 + 0xFFFE] + photo[2:],
        saved(Image.fromarray(wide), "GIF"),
        saved(Image.fromarray(wide), "PNG"),
        *(of_frames(kind, 1500) for kind in ("GIF", "PNG", "WEBP")),
        animated("MPO"),
    ]
    for data in files:
        open_image(data, ImageLimits(10**6, first_frame=True))
        assert count_steps(data) < MOST_STEPS + len(data) // 2048


def test_a_turn_does_not_write_the_other_tags_again() -> None:
    """65,535 damaged tags took 3 s, and were then refused."""
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x8769] = {n: n for n in range(0x9000, 0x9800)}
    data = saved(Image.fromarray(pixels()), "JPEG", exif=exif)
    np.testing.assert_array_equal(
        np.asarray(open_image(data, LIMITS)), np.asarray(open_image(turned(6), LIMITS))
    )


def test_damaged_tags_are_not_written_to_standard_error() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\1\0" + b"\1\1\2\0" + b"\xff\xff\0\0" * 2 + bytes(4)
    data = saved(Image.fromarray(pixels()), "WEBP", exif=exif)
    code = (
        "import sys; from model.images.opening import *; "
        f"open_image(sys.stdin.buffer.read(), ImageLimits({10**6}))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stderr == b""


def test_the_end_of_a_png_file_ends_the_count() -> None:
    assert count_steps(png(1, 1, 8, 2) + MEGABYTES["PNG texts"][33:]) == 2
