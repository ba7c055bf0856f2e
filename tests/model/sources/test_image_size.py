"""Checkpoints with another size of pictures, as all readers of checkpoints see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.errors import ConfigError
from model.images.processing import ImageProcessing, read_processing
from model.sources.overlay import with_image_size
from tests.model.picture_checkpoints import PROCESSOR

EXPECTED = {"resize": (70, 43), "shortest_edge": None, "crop": None, "resample": 3}


def resized(folder: Path) -> ImageProcessing:
    return read_processing(with_image_size(folder, (70, 43), folder.parent / "sizes"))


@pytest.mark.parametrize("whole", [False, True])
def test_pictures_are_resized_without_a_crop(tmp_path: Path, whole: bool) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    name, content = "preprocessor_config.json", PROCESSOR
    if whole:
        name = "processor_config.json"
        content = {"image_processor": PROCESSOR, "processor_class": "CLIPProcessor"}
    (folder / name).write_text(json.dumps(content))
    found = resized(folder)
    assert found == read_processing(folder).model_copy(update=EXPECTED)


def test_a_checkpoint_without_pictures(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no image processor: leave out --image-size"):
        with_image_size(tiny_checkpoint, (70, 43), tmp_path)
