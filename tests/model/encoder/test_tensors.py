"""Tensors of adapters and pictures that do not fit their config."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint import load_checkpoint
from model.config.encoder import AdapterLayout
from model.encoder.adapter_tensors import Matrices, low_rank_matrices, stacked
from model.errors import CheckpointError
from model.families.registry import parse_config, read_fields
from tests.model.checkpoints import edit_json, edit_weights

LAYOUT = AdapterLayout(count=2, rank=2)
M, A, B = "layers.0.m", torch.ones(2, 4), torch.ones(5, 2)


def test_low_rank_matrices_are_told_by_their_keys() -> None:
    keys = ("a.lora_A", "a.lora_B.weight", "b.lora_embedding_A", "b.weight")
    matrices, others = low_rank_matrices(dict.fromkeys(keys, A))
    assert {name: {*pair} for name, pair in matrices.items()} == {"a": {"A", "B"}, "b": {"A"}}
    assert {*others} == {"b.weight"}


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ([{M: {"A": A}}, {}], "lacks a matrix"),
        ([{M: {"A": A, "B": torch.ones(5, 3)}}, {}], "lacks a matrix"),
        ([{M: {"A": A, "B": B}}, {M: {"A": A[:, 1:], "B": B}}], "does not fit the encoder"),
        ([{M: {"A": torch.ones(3, 4), "B": torch.ones(5, 3)}}, {}], "does not fit the encoder"),
        ([{"layers.0.n": {"A": A, "B": B}}, {}], "does not fit the encoder"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(tasks: list[Matrices], problem: str) -> None:
    tensors = {f"{M}.weight": torch.ones(5, 4)}
    with pytest.raises(
        CheckpointError, match=rf"the folder: the adapter of layers\.0\.. {problem}"
    ):
        stacked([(matrices, 1.0) for matrices in tasks], tensors, LAYOUT, "the folder")


POSITIONS = "embeddings.position_embeddings"


@pytest.fixture
def folder(picture_checkpoint: Path, tmp_path: Path) -> Path:
    """Return the checkpoint, to be damaged."""
    return Path(shutil.copytree(picture_checkpoint, tmp_path / "some folder"))


@pytest.mark.parametrize(
    ("key", "tensor", "message"),
    [
        ("embeddings.cls_token", torch.ones(1, 1, 11), "special.0 has 11 features instead of 24"),
        (POSITIONS, torch.ones(1, 9, 11), "position.weight has 11 features"),
        (
            "embeddings.position_embeddings",
            torch.ones(1, 8, 24),
            "has 8 rows, and image_size gives",
        ),
        (POSITIONS, torch.ones(1, 13, 24), "3 × 3 patches and 3 special"),
        ("embeddings.register_tokens", torch.ones(1, 3, 24), r"word.weight \(5, 24\) instead of"),
        (
            "embeddings.patch_embeddings.projection.weight",
            torch.ones(24, 3, 13, 14),
            r"patch.weight \(24, 546\) instead of \(24, 588\)",
        ),
        ("encoder.layer.1.layer_scale1.lambda1", torch.ones(11), "output.scale has 11 features"),
    ],
)
def test_tensors_of_another_shape(
    folder: Path, key: str, tensor: torch.Tensor, message: str
) -> None:
    edit_weights(folder, **{key: tensor})
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["embeddings.patch_embeddings.projection.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: embeddings.patch.weight"):
        load_checkpoint(folder)


def test_only_a_square_table_is_interpolated(folder: Path) -> None:
    edit_json(folder / "config.json", image_size=[14, 126])
    own = load_checkpoint(folder, parse_config(read_fields(folder)))
    assert own.config.max_position_embeddings == 3 + 9
    with pytest.raises(CheckpointError, match="its position table is of 1 × 9 patches"):
        load_checkpoint(folder)
