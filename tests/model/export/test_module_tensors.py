from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from model.errors import CheckpointError
from model.export.module_tensors import module_tensors
from model.numerics.vector_modules import Dense, LayerNorm, Normalize
from tests.model.pickles import pickle_weights
from tests.model.sentences import modules_of

DENSE = Dense(in_features=3, out_features=2)
TENSORS = {"linear.weight": torch.randn(2, 3), "linear.bias": torch.randn(2)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a folder of Normalize → Dense → Dropout → LayerNorm, without the encoder's files."""
    kinds = ("Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm")
    (tmp_path / "modules.json").write_text(json.dumps(modules_of(*kinds)))
    write(tmp_path, "3_Dense", TENSORS)
    write(tmp_path, "5_LayerNorm", {"norm.weight": torch.ones(2), "norm.bias": torch.zeros(2)})
    return tmp_path


def write(folder: Path, name: str, tensors: dict[str, Tensor]) -> None:
    (folder / name).mkdir(exist_ok=True)
    save_file(tensors, folder / name / "model.safetensors")


def test_tensors_go_by_the_place_of_their_module(folder: Path) -> None:
    found = module_tensors(folder, (Normalize(), DENSE, LayerNorm(dimension=2)))
    assert list(found) == ["1.linear.bias", "1.linear.weight", "2.norm.bias", "2.norm.weight"]
    torch.testing.assert_close(found["1.linear.weight"], TENSORS["linear.weight"])


def test_they_are_float32_whatever_the_file_holds(folder: Path) -> None:
    write(folder, "3_Dense", {name: t.to(torch.bfloat16) for name, t in TENSORS.items()})
    found = module_tensors(folder, (DENSE,))
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}


def test_without_modules_there_are_none(tmp_path: Path) -> None:
    assert module_tensors(tmp_path, ()) == {}


@pytest.mark.parametrize(
    "tensors",
    [
        {"linear.weight": torch.ones(2, 3)},
        TENSORS | {"more": torch.ones(1)},
        TENSORS | {"linear.weight": torch.ones(3, 2)},
    ],
    ids=["missing", "unexpected", "mis-shaped"],
)
def test_other_tensors_are_refused(folder: Path, tensors: dict[str, Tensor]) -> None:
    write(folder, "3_Dense", tensors)
    with pytest.raises(CheckpointError, match=r"not those of its config\.json, \{'linear\.weight'"):
        module_tensors(folder, (DENSE,))


def test_values_have_to_be_finite(folder: Path) -> None:
    write(folder, "3_Dense", TENSORS | {"linear.bias": torch.tensor([1, float("nan")])})
    with pytest.raises(CheckpointError, match=r"linear\.bias holds a value that is not finite"):
        module_tensors(folder, (DENSE,))


def test_damaged_weights_are_refused(folder: Path) -> None:
    (folder / "3_Dense" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        module_tensors(folder, (DENSE,))


def test_pickled_weights_are_read(folder: Path) -> None:
    expected = module_tensors(folder, (DENSE,))
    pickle_weights(folder / "3_Dense")
    found = module_tensors(folder, (DENSE,))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
