"""Parameters of a checkpoint's modules after pooling.

A module has a folder of its own, but the first modules of a tower of CLIP or SigLIP are part of the
checkpoint itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint import folder_tensors
from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.families.registry import FAMILIES, read_config
from model.numerics.attention_pooling import PREFIX, pooling_shapes
from model.numerics.vector_modules import VectorModule, tensor_name
from model.sources.files import encoder_fields, listed_modules, transformer_folder
from model.sources.sentence import tower_vectors
from model.sources.task_files import PYLATE_DENSE

_WITH_TENSORS = ("Dense", "LayerNorm", PYLATE_DENSE)


def module_tensors(checkpoint: Path, modules: tuple[VectorModule, ...]) -> dict[str, Tensor]:
    """Return the float32 tensors of the modules, by their names in an artifact."""
    inside = transformer_folder(checkpoint)
    tower = tower_vectors(inside, encoder_fields(checkpoint))
    places, folders = tower.places if tower else (), _folders(checkpoint)
    tensors = {}
    for place, module in enumerate(modules):
        if module.kind not in _WITH_TENSORS:
            continue
        shapes = module.shapes()
        if place < len(places):
            folder, loaded = inside, _within(inside, places[place], shapes)
        else:
            folder = next(folders)
            loaded = folder_tensors(folder)
        if {name: tuple(tensor.shape) for name, tensor in loaded.items()} != shapes:
            raise CheckpointError(
                f"{folder}: its tensors are not those of its config.json, {shapes}"
            )
        for name, tensor in loaded.items():
            if not tensor.isfinite().all():
                raise CheckpointError(f"{folder}: {name} holds a value that is not finite")
            tensors[tensor_name(place, name)] = tensor.to(torch.float32).contiguous()
    return dict(sorted(tensors.items()))


def pooling_tensors(folder: Path, config: EncoderConfig) -> dict[str, Tensor]:
    """Return the float32 parameters of SigLIP's pooling, by their names in an artifact."""
    shapes = pooling_shapes(config)
    loaded = _inside(folder, {f"head.{name}": name for name in shapes})
    for name, shape in shapes.items():
        tensor = loaded.get(name)
        if tensor is None or tuple(tensor.shape) != shape or not tensor.isfinite().all():
            found = "missing" if tensor is None else f"{tuple(tensor.shape)} or not finite"
            raise CheckpointError(f"{folder}: head.{name} is {found}, not finite numbers {shape}")
    return {PREFIX + name: loaded[name].to(torch.float32).contiguous() for name in sorted(shapes)}


def _within(folder: Path, place: str, names: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors of a module inside a tower's checkpoint.

    `place` is the module's key without the tower's prefix; `names` begin with a part of our own.
    """
    return _inside(folder, {f"{place}.{name.rpartition('.')[2]}": name for name in names})


def _inside(folder: Path, keys: Mapping[str, str]) -> dict[str, Tensor]:
    """Return tensors of a tower's checkpoint by the names in `keys`, which lack its prefix."""
    prefix = FAMILIES[read_config(folder).model_type].prefix
    stored = folder_tensors(folder, lambda key: key.removeprefix(prefix) in keys)
    return {keys[key.removeprefix(prefix)]: tensor for key, tensor in stored.items()}


def _folders(checkpoint: Path) -> Iterator[Path]:
    for entry in listed_modules(checkpoint) or ():
        if entry.kind in _WITH_TENSORS:
            yield entry.folder
