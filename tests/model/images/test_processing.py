"""Files of image processors against transformers' reading, and steps of opening within limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import CLIPProcessor
from transformers.image_processing_backends import PilBackend
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from model.errors import ConfigError, ImageError
from model.images.opening import ImageLimits, open_image, read_size
from model.images.processing import ImageProcessing, read_processing
from model.images.steps import MOST_STEPS, count_steps
from testing.damaged_pictures import damaged
from testing.pictures import animated, crowded, kinds, pixels, png, saved, turned

CASES: list[tuple[type[PilBackend], dict[str, Any]]] = [
    (ViTImageProcessorPil, {"image_processor_type": "ViTFeatureExtractor", "size": 384}),
    (ViTImageProcessorPil, {"image_processor_type": "ViTImageProcessorFast", "size": [32, 48]}),
    (DeiTImageProcessorPil, {"feature_extractor_type": "DeiTFeatureExtractor", "crop_size": 200}),
    (CLIPImageProcessorPil, {"feature_extractor_type": "CLIPFeatureExtractor", "size": 336}),
    (CLIPImageProcessorPil, {"image_processor_type": "CLIPImageProcessor", "crop_size": [9, 8]}),
    (BitImageProcessorPil, {"image_processor_type": "BitImageProcessorFast", "resample": 1}),
    (SiglipImageProcessorPil, {"image_processor_type": "SiglipImageProcessor", "image_mean": 0.4}),
    (ViTImageProcessorPil, {"image_processor_type": "ViTImageProcessorPil", "do_rescale": False}),
    (DeiTImageProcessorPil, {"image_processor_type": "DeiTImageProcessor", "do_resize": False}),
    (CLIPImageProcessorPil, {"image_processor_type": "CLIPImageProcessor", "do_normalize": False}),
]


def written(folder: Path, fields: dict[str, Any], name: str = "preprocessor_config.json") -> Path:
    (folder / name).write_text(json.dumps(fields))
    return folder


def expected(processor: PilBackend) -> ImageProcessing:
    """Return the steps by the attributes of transformers' processor."""
    size, crop = processor.size, processor.crop_size
    steps: dict[str, Any] = {}
    if processor.do_resize:
        edge = {"shortest_edge": size.shortest_edge, "resample": processor.resample}
        steps = edge if size.shortest_edge else {"resize": (size.height, size.width)}
        steps["resample"] = int(processor.resample)
    if processor.do_center_crop:
        steps["crop"] = (crop.height, crop.width)
    if processor.do_rescale:
        steps["rescale_factor"] = processor.rescale_factor
    if processor.do_normalize:
        for name, value in (("mean", processor.image_mean), ("std", processor.image_std)):
            steps[name] = (value,) * 3 if isinstance(value, float) else tuple(value)
    return ImageProcessing(**steps)


@pytest.mark.parametrize(("kind", "fields"), CASES)
def test_fields_mean_the_same_as_in_transformers(
    kind: type[PilBackend], fields: dict[str, Any], tmp_path: Path
) -> None:
    folder = written(tmp_path, fields)
    assert read_processing(folder) == expected(kind.from_pretrained(folder))


@pytest.mark.parametrize("model_type", ["vit", "dinov2_with_registers"])
def test_the_model_names_a_processor_without_a_name(model_type: str, tmp_path: Path) -> None:
    folder = written(written(tmp_path, {"size": 32}), {"model_type": model_type}, "config.json")
    kind = {"vit": ViTImageProcessorPil}.get(model_type, BitImageProcessorPil)
    assert read_processing(folder) == expected(kind(size=32))


def test_the_file_of_a_whole_processor_takes_precedence(tmp_path: Path) -> None:
    """As `CLIPProcessor.save_pretrained` of transformers 5 writes it."""
    processor = CLIPImageProcessorPil(size=40, crop_size=32)
    nested = {"image_processor": processor.to_dict(), "processor_class": CLIPProcessor.__name__}
    folder = written(tmp_path, {"image_processor_type": "ViTImageProcessor"})
    written(folder, nested, "processor_config.json")
    assert read_processing(folder) == expected(processor)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_processor_type": "Siglip2ImageProcessor"}, "Siglip2ImageProcessor is not suppo"),
        ({"image_processor_type": "ViTImageProcessor", "do_pad": True}, "do_pad"),
        (
            {"image_processor_type": "ViTImageProcessor", "size": {"longest_edge": 9}},
            "longest_edge",
        ),
        ({"image_processor_type": "CLIPImageProcessor", "do_center_crop": False}, "set crop_size"),
        (
            {"image_processor_type": "CLIPImageProcessor", "crop_size": {"shortest_edge": 2}},
            "width",
        ),
        ({"image_processor_type": "ViTImageProcessor", "size": 0}, "resize.0: Input should be"),
        ({"image_processor_type": "ViTImageProcessor", "image_std": [1, 0, 1]}, "std.1: Input"),
        ({"image_processor_type": "ViTImageProcessor", "resample": 9}, "resample: Input should"),
        (
            {"image_processor_type": "ViTImageProcessor", "image_mean": None},
            "mean is needed and null",
        ),
        ({}, "image processor None is not supported"),
    ],
)
def test_what_cannot_be_done_is_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_processing(written(tmp_path, fields))


@pytest.mark.parametrize("content", [None, "[]", "{"])
def test_a_file_that_cannot_be_read_is_named(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json"):
        read_processing(tmp_path)


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
