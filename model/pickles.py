"""Tensors of pickled weights, read without running code of the file.

`torch.load(weights_only=True)` builds only tensors and plain containers
(https://docs.pytorch.org/docs/stable/notes/serialization.html#weights-only); here a file is refused
if it holds anything but a flat mapping of names to tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from model.errors import CheckpointError

_ZIP = b"PK\x03\x04"
"""First bytes of a file of `torch.save` since PyTorch 1.6; older files cannot be mapped."""
_CLASS = re.compile(r"(?:GLOBAL|class|function) ([A-Za-z_][\w.]*\w)(?= |,|$)", re.MULTILINE)
"""Name of the refused class or function in an error message of `torch.load`."""


def pickled_tensors(
    path: Path, wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, Tensor]:
    """Return the tensors of a pickled state dict by their keys, contiguous and on the CPU."""
    tensors = {key: tensor for key, tensor in pickled_state(path).items() if wanted(key)}
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"{path}: {key} is of {tensor.dtype}, not of floats")
    return {key: tensor.detach().contiguous() for key, tensor in tensors.items()}


def pickled_state(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a pickled state dict as they are stored.

    A file of PyTorch 1.6 or later is mapped into memory, an older one is read as a whole.
    """
    content = _load(path)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds {_kind(content)}, not tensors by their names")
    for key, value in content.items():
        if not isinstance(key, str) or not _is_plain(value):
            raise CheckpointError(
                f"{path} holds {key!r} of {_kind(value)}, and only plain tensors are read: save "
                "its state_dict() as safetensors"
            )
    return dict(content)


def _load(path: Path) -> object:
    try:
        with path.open("rb") as file:
            zipped = file.read(len(_ZIP)) == _ZIP
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # a damaged file raises errors of many kinds
        if (refused := _CLASS.search(str(error))) is not None:
            raise CheckpointError(
                f"{path} holds {refused[1]}, which is refused, as it is not a tensor and could run "
                "code: save its state_dict() as safetensors"
            ) from None
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        if "weights_only" in reason:  # advice to run the file's code
            reason = "it is damaged, or of another format"
        raise CheckpointError(f"{path} is not a readable file of torch.save: {reason}") from None


def _is_plain(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, nn.Parameter)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{type(value).__name__} ({value.dtype}, {value.layout}, {value.device})"
