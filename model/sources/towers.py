"""Towers of a CLIP or SigLIP checkpoint, as folders of links that look like one tower each.

All readers of checkpoints then read one format: transformers' `CLIPTextModelWithProjection`,
`CLIPVisionModelWithProjection`, `SiglipTextModel` and `SiglipVisionModel`. An image classifier with
a vision tower has that tower alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from model.artifact.modules import read_object, transformer_folder
from model.errors import ModelError
from model.families.towers import Tower, towers
from model.sources.checkpoint_files import read_json
from model.sources.overlay import overlaid

CONFIG = "config.json"


def split(checkpoint: Path, folders: Path) -> dict[Tower, Path]:
    """Write a folder for each tower of a checkpoint, and return them; empty without towers."""
    inside = transformer_folder(checkpoint)
    path = (inside.relative_to(checkpoint) / CONFIG).as_posix()
    return {
        tower: overlaid(checkpoint, {path: json.dumps(config)}, folders)
        for tower, config in towers(read_object(inside / CONFIG)).items()
    }


@contextlib.contextmanager
def as_folders(checkpoint: Path) -> Iterator[dict[Tower, Path]]:
    """Provide a folder for each tower of a checkpoint while the context lasts; see `split`.

    Errors inside name the checkpoint in place of these folders.
    """
    config = read_json(transformer_folder(checkpoint) / CONFIG)
    if not (isinstance(config, dict) and towers(config)):
        yield {}
        return
    with TemporaryDirectory() as folder:
        parts = split(checkpoint, Path(folder))
        try:
            yield parts
        except ModelError as error:
            message = str(error)
            for own in parts.values():
                message = message.replace(str(own), str(checkpoint))
            raise type(error)(message) from None
