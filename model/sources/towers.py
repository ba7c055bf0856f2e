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

from model.artifact.modules import listed_modules, read_object, transformer_folder
from model.errors import ModelError
from model.families.towers import Tower, towers
from model.sources.checkpoint_files import read_json

CONFIG = "config.json"


def split(checkpoint: Path, folders: Path) -> dict[Tower, Path]:
    """Write a folder for each tower of a checkpoint, and return them; empty without towers.

    Args:
        checkpoint: a Hugging Face folder, with or without sentence-transformers' files.
        folders: an empty folder, the parent of the new ones.

    Raises:
        ConfigError: as for `towers`; or a file cannot be read.

    """
    inside = transformer_folder(checkpoint)
    configs = towers(read_object(inside / CONFIG))
    own = [entry.folder for entry in listed_modules(checkpoint) or () if entry.folder != checkpoint]
    made = {}
    for tower, config in configs.items():
        folder = folders / tower
        _link(checkpoint, folder)
        for module in own:
            _link(module, folder / module.name)
        described = folder / inside.relative_to(checkpoint) / CONFIG
        described.unlink()
        described.write_text(json.dumps(config), encoding="utf-8")
        made[tower] = folder
    return made


def _link(source: Path, folder: Path) -> None:
    """Make a folder of links to the files of a folder."""
    folder.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.is_file():
            (folder / path.name).symlink_to(path.resolve())


@contextlib.contextmanager
def as_folders(checkpoint: Path) -> Iterator[dict[Tower, Path]]:
    """Provide a folder for each tower of a checkpoint while the context lasts; see `split`.

    Errors inside name the checkpoint in place of these folders.

    Raises:
        ConfigError: as for `split`.

    """
    config = read_json(transformer_folder(checkpoint) / CONFIG)
    if not (isinstance(config, dict) and towers(config)):
        yield {}
        return
    with TemporaryDirectory() as folder:
        try:
            yield split(checkpoint, Path(folder))
        except ModelError as error:
            message = str(error)
            for tower in ("text", "vision"):
                message = message.replace(str(Path(folder, tower)), str(checkpoint))
            raise type(error)(message) from None
