"""Checkpoints with pickled weights in place of safetensors, as old tools wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file


class Hostile:
    """Object whose unpickling creates a file: code that a pickle runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def pickle_weights(folder: Path, *, shards: int = 1, zipped: bool = True) -> None:
    """Replace a folder's `model.safetensors` by `pytorch_model.bin`, whole or in shards."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    if shards == 1:
        names = dict.fromkeys(tensors, "pytorch_model.bin")
    else:
        names = {
            key: f"pytorch_model-{i % shards + 1:05}-of-{shards:05}.bin"
            for i, key in enumerate(tensors)
        }
        index = {"metadata": {}, "weight_map": names}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for name in set(names.values()):
        state = {key: tensor for key, tensor in tensors.items() if names[key] == name}
        torch.save(state, folder / name, _use_new_zipfile_serialization=zipped)
