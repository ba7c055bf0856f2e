"""Checkpoints whose pictures are processed to another size than their own files say."""

from __future__ import annotations

import json
from pathlib import Path

from model.artifact.modules import read_object, transformer_folder
from model.errors import ConfigError
from model.images.processing import PREPROCESSOR, PROCESSOR, read_processing
from model.sources.overlay import overlaid


def with_image_size(checkpoint: Path, size: tuple[int, int], folders: Path) -> Path:
    """Return a folder that combines a checkpoint with another size of its pictures.

    Pictures are resized to the size, whatever their proportions, and not cropped.

    Args:
        checkpoint: a Hugging Face folder.
        size: height and width in pixels.
        folders: parent of the new folder, which is reused if it exists.

    Raises:
        ConfigError: the checkpoint has no image processor, or one that is not supported.

    """
    inside = transformer_folder(checkpoint)
    whole = read_object(inside / PROCESSOR)
    nested = whole.get("image_processor")
    own = nested if isinstance(nested, dict) else read_object(inside / PREPROCESSOR)
    if not own:
        raise ConfigError(f"{checkpoint} has no image processor: leave out --image-size")
    read_processing(inside)
    resized = own | {
        "do_resize": True,
        "size": {"height": size[0], "width": size[1]},
        "do_center_crop": False,
    }
    name, content = PREPROCESSOR, resized
    if own is nested:
        name, content = PROCESSOR, whole | {"image_processor": resized}
    place = (inside / name).relative_to(checkpoint).as_posix()
    return overlaid(checkpoint, {place: json.dumps(content)}, folders)
