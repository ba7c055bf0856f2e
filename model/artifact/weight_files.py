"""Files with the weights of a checkpoint, safetensors before pickles. Without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from model.artifact.modules import listed_modules, transformer_folder
from model.errors import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
FORMATS = ((WEIGHTS, INDEX), (PICKLE, PICKLE_INDEX))
"""Names of the only file and of the shards' index, in the order of preference."""

HYBRID_HEADS = ("colbert_linear.pt", "sparse_linear.pt")
"""Files beside bge-m3's encoder with the linear maps of its token vectors and token weights."""


def weight_files(folder: Path, *, pickles: bool = True) -> list[Path]:
    """Return the files with the tensors of a folder: one, or the shards named by its index.

    With `pickles`, pickles count where there are no safetensors.
    """
    for single, index in FORMATS if pickles else FORMATS[:1]:
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return _shards(folder / index)
    raise CheckpointError(f"{folder} holds no {WEIGHTS}{f' and no {PICKLE}' if pickles else ''}")


def _shards(index: Path) -> list[Path]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted({Path(name).as_posix() for name in weight_map.values()})
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        names = []
    if not names:
        raise CheckpointError(f"{index} is not an index of weights")
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise CheckpointError(f"{index} names {name}, which is not in the folder")
        if is_pickle(index) != is_pickle(Path(name)):
            raise CheckpointError(f"{index} names {name}, which is of another format")
    return [index.parent / name for name in names]


def is_pickle(path: Path) -> bool:
    """Return whether a file of weights, or an index of such files, is of pickles by its name."""
    return path.name == PICKLE_INDEX or path.suffix in (".bin", ".pt")


def pickled_files(checkpoint: Path) -> list[Path]:
    """Return the pickles that an export of a checkpoint reads."""
    modules = listed_modules(checkpoint) or ()
    folders = {transformer_folder(checkpoint), *(module.folder for module in modules)}
    files: set[Path] = set()
    for folder in folders:
        if any((folder / name).is_file() for pair in FORMATS for name in pair):
            files |= {path for path in weight_files(folder) if is_pickle(path)}
    files |= {path for name in HYBRID_HEADS if (path := checkpoint / name).is_file()}
    return sorted(files)


def report_pickles(checkpoint: Path, progress: Callable[[str], None]) -> None:
    """Report the pickles that an export of a checkpoint reads, if there are any."""
    if files := pickled_files(checkpoint):
        names = ", ".join(path.relative_to(checkpoint).as_posix() for path in files)
        progress(f"reading tensors, and nothing else, from pickled weights: {names}")
