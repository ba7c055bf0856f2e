"""Tensors of a safetensors file, mapped into memory: pages come from the file as they are read.

Format: https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def mapped_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """The float32 tensors of a file by their keys; read only, and none of them is copied.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no safetensors file of float32.

    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    content = np.asarray(np.memmap(path, np.uint8, mode="r"))
    tensors = {}
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{path} holds {key} as {entry['dtype']}, not F32")
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[key] = content[begin:end].view(np.float32).reshape(entry["shape"])
    return tensors
