"""Files of image processors, old and new, against transformers' reading of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CLIPProcessor
from transformers.image_processing_backends import PilBackend
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from model.errors import ConfigError
from model.images.processing import ImageProcessing, read_processing

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


def test_another_size_is_resized_without_a_crop() -> None:
    processing = ImageProcessing(shortest_edge=224, crop=(224, 224)).at_size(32, 48)
    assert processing == ImageProcessing(resize=(32, 48))
    assert processing.size == (32, 48)


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
