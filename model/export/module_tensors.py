"""Parameters of a checkpoint's modules after pooling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from model.artifact.late_files import PYLATE_DENSE
from model.artifact.modules import listed_modules
from model.artifact.weight_files import weight_files
from model.checkpoint import read_tensors
from model.errors import CheckpointError
from model.numerics.vector_modules import VectorModule, tensor_name

_WITH_TENSORS = ("Dense", "LayerNorm", PYLATE_DENSE)


def module_tensors(checkpoint: Path, modules: tuple[VectorModule, ...]) -> dict[str, Tensor]:
    """Return the float32 tensors of the modules, by their names in an artifact.

    Args:
        checkpoint: the folder with `modules.json`.
        modules: the modules, as read from the folder.

    Raises:
        CheckpointError: a module's tensors are missing, damaged, or not of its sizes.

    """
    folders = _folders(checkpoint)
    tensors = {}
    for place, module in enumerate(modules):
        if module.kind not in _WITH_TENSORS:
            continue
        folder = next(folders)
        loaded, shapes = _read(folder), module.shapes()
        if {name: tuple(tensor.shape) for name, tensor in loaded.items()} != shapes:
            raise CheckpointError(
                f"{folder}: its tensors are not those of its config.json, {shapes}"
            )
        for name, tensor in loaded.items():
            if not tensor.isfinite().all():
                raise CheckpointError(f"{folder}: {name} holds a value that is not finite")
            tensors[tensor_name(place, name)] = tensor.to(torch.float32).contiguous()
    return dict(sorted(tensors.items()))


def _folders(checkpoint: Path) -> Iterator[Path]:
    for entry in listed_modules(checkpoint) or ():
        if entry.kind in _WITH_TENSORS:
            yield entry.folder


def _read(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        tensors |= read_tensors(path)
    return tensors
