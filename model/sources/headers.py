"""What the headers of safetensors files tell of a checkpoint, before anything is loaded.

Format: https://huggingface.co/docs/safetensors. Without torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.families.registry import FAMILIES

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of each tensor by its key."""
FULL = "name the checkpoint of its weights in fp32, bf16 or fp16"
_MAX_HEADER_BYTES = 100_000_000
"""Most bytes of a header, as the format's own reader has it."""
_QUANTISED = re.compile(r"I8|U8|[IU]4|F[468]_\w+")
"""Names of types of quantised weights."""
_FLOATS = {"F64", "F32", "F16", "BF16"}
_QUANTISED_KEY = re.compile(r"\.(qweight|qzeros|weight_packed)$")
_LAYER = re.compile(r"layers\.(\d+)\.")


def check_weights(folder: Path, files: Iterable[Path], config: EncoderConfig) -> None:
    """Refuse weights that are damaged, quantised, or those of another config.

    Whether each tensor fits is left to what loads them.

    Args:
        folder: the checkpoint.
        files: its safetensors files.
        config: what its encoder is.

    Raises:
        CheckpointError: names the file and the reason.

    """
    headers = {path: _tensors(path) for path in files}
    names = FAMILIES[config.model_type].encoder_keys(
        [key for each in headers.values() for key in each]
    )
    shapes: dict[str, tuple[int, ...]] = {}
    for path, tensors in headers.items():
        _check_types(path, tensors)
        for key in tensors.keys() & names.keys():
            dtype, shape = tensors[key]
            if dtype not in _FLOATS:
                raise CheckpointError(f"{path}: {key} is {dtype}, not a float: {FULL}")
            shapes[names[key]] = shape
    words = shapes.get("embeddings.word.weight")
    expected = (config.vocab_size, config.embeddings.size or config.hidden_size)
    if words != expected:
        found = f"are {words}, not {expected}" if words else "are missing"
        raise CheckpointError(f"{folder} does not fit its config: word embeddings {found}")
    layers = {match[1] for name in shapes if (match := _LAYER.match(name))}
    if len(layers) != config.layer_groups:
        raise CheckpointError(
            f"{folder} does not fit its config: there are tensors of {len(layers)} layers, "
            f"not of {config.layer_groups}"
        )


def _tensors(path: Path) -> Tensors:
    have = path.stat().st_size
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size) if size <= _MAX_HEADER_BYTES else b"")
        fields = [(key, of) for key, of in header.items() if key != "__metadata__"]
        tensors = {key: (str(of["dtype"]), tuple(of["shape"])) for key, of in fields}
        whole = 8 + size + max((of["data_offsets"][1] for _, of in fields), default=0)
    except (ValueError, AttributeError, TypeError, LookupError, RecursionError):
        raise CheckpointError(
            f"{path} is no safetensors file, or its beginning is damaged: fetch it again"
        ) from None
    if have != whole:
        raise CheckpointError(f"{path} has {have} bytes instead of {whole}: fetch it again")
    return tensors


def _check_types(path: Path, tensors: Tensors) -> None:
    for key, (dtype, _) in tensors.items():
        if _QUANTISED.fullmatch(dtype) or _QUANTISED_KEY.search(key):
            raise CheckpointError(
                f"{path} holds quantised weights ({key} is {dtype}), which are not read: {FULL}; "
                "export --precision int8 quantises it here"
            )
