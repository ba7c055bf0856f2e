"""Errors for weights, by their headers alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.families.registry import read_config
from model.sources.headers import check_weights
from tests.model.checkpoints import edit_json, edit_weights


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Return a supported checkpoint, to be damaged."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "some folder"))


def check(folder: Path) -> None:
    check_weights(folder, [folder / "model.safetensors"], read_config(folder))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as failed:
        check(folder)
    message = str(failed.value)
    assert "\n" not in message
    assert message.startswith(str(folder))
    return message.removeprefix(str(folder)).lstrip(" /")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_any_float_type_pass(folder: Path, dtype: torch.dtype) -> None:
    """A buffer of old checkpoints is among them."""
    path = folder / "model.safetensors"
    cast = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(cast | {"embeddings.position_ids": torch.arange(4)}, path)
    check(folder)


def test_patches_of_another_size(picture_checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(picture_checkpoint, tmp_path / "some folder"))
    check(folder)
    key = "embeddings.patch_embeddings.projection.weight"
    edit_weights(folder, **{key: torch.ones(24, 3, 7, 7)})
    assert "patch embeddings are (24, 3, 7, 7), not (24, 3, 14, 14)" in refusal(folder)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.int8, "I8"), (torch.uint8, "U8"), (torch.float8_e4m3fn, "F8_E4M3")],
)
def test_quantised_tensors(folder: Path, dtype: torch.dtype, name: str) -> None:
    edit_weights(folder, **{"b.weight": torch.ones(2, 2).to(dtype)})
    said = f"model.safetensors holds quantised weights (b.weight is {name})"
    assert refusal(folder).startswith(said)


def test_weights_that_are_no_floats(folder: Path) -> None:
    edit_weights(folder, **{"embeddings.LayerNorm.weight": torch.ones(12, dtype=torch.int32)})
    assert "embeddings.LayerNorm.weight is I32, not a float" in refusal(folder)


def with_header(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + content


DAMAGED = [
    *(b"", b"short", b"\xff" * 99, b"\x02" + bytes(7) + b"[]", (2**62).to_bytes(8, "little")),
    with_header(b'{"a":' * 20_000),
    with_header(b'{"a": {"dtype": "F32", "data_offsets": [0, 4]}}'),
    with_header(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}'),
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert "is not a safetensors file, or its header is damaged: fetch it" in refusal(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


def test_weights_that_are_cut_off(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-7])
    said = f"model.safetensors has {len(whole) - 7} bytes instead of {len(whole)}: fetch it again"
    assert refusal(folder) == said


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"vocab_size": 61}, "word embeddings are (60, 12), not (61, 12)"),
        ({"hidden_size": 15}, "word embeddings are (60, 12), not (60, 15)"),
        ({"num_hidden_layers": 3}, "there are tensors of 2 layers, not of 3"),
        ({"num_hidden_layers": 10**9}, "there are tensors of 2 layers, not of 1000000000"),
        ({"model_type": "nomic_bert"}, "there are tensors of 0 layers, not of 2"),
        ({"model_type": "modernbert"}, "word embeddings are missing"),
    ],
    ids=str,
)
def test_weights_of_another_config(folder: Path, changes: dict[str, Any], part: str) -> None:
    edit_json(folder / "config.json", **changes)
    assert refusal(folder) == f"does not fit its config: {part}"
