"""Reading of pickled weights, compared with what was saved; hostile and other files."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from model.errors import CheckpointError
from model.pickles import pickled_state, pickled_tensors
from tests.model.pickles import Hostile
from tests.model.refusals import refused


def save(folder: Path, content: object, *, zipped: bool = True) -> Path:
    path = folder / "pytorch_model.bin"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def refusal(path: Path) -> str:
    return refused(CheckpointError, path, pickled_state, path)


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_are_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    module = nn.Linear(3, 2)
    path = save(tmp_path, module.state_dict(), zipped=zipped)
    options: list[dict[str, Any]] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda f, **o: options.append(o) or load(f, **o))
    tensors = pickled_tensors(path)
    assert options == [{"map_location": "cpu", "weights_only": True, "mmap": zipped}]
    assert tensors.keys() == {"weight", "bias"}
    assert torch.equal(tensors["weight"], module.weight)
    assert pickled_tensors(path, lambda key: key == "bias").keys() == {"bias"}


def test_views_and_parameters_become_contiguous_tensors(tmp_path: Path) -> None:
    values = torch.randn(3, 4)
    content = {"view": values.T, "parameter": nn.Parameter(values), "positions": torch.arange(3)}
    tensors = pickled_tensors(save(tmp_path, content), lambda key: key != "positions")
    assert torch.equal(tensors["view"], values.T)
    assert tensors["view"].is_contiguous()
    assert not tensors["parameter"].requires_grad


@pytest.mark.parametrize("variable", ["", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_hostile_file_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool, variable: str
) -> None:
    trace = tmp_path / "trace"
    path = save(tmp_path, {"a": torch.ones(2), "b": Hostile(trace)}, zipped=zipped)
    if variable:
        monkeypatch.setenv(variable, "1")
    assert f"holds {io.open.__module__}.open, which is refused" in refusal(path)
    assert not trace.exists()


def test_a_plain_pickle_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = tmp_path / "pytorch_model.bin"
    for protocol in range(6):
        path.write_bytes(pickle.dumps(Hostile(trace), protocol))
        refusal(path)
        assert not trace.exists()
    pickle.loads(path.read_bytes()).close()
    assert trace.exists()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (nn.Linear(2, 2), "torch.nn.modules.linear.Linear, which is refused"),
        ({"a": torch.ones(2), "epoch": 3}, "'epoch' of int, and only plain tensors are read"),
        ({"state_dict": {"a": torch.ones(2)}}, "'state_dict' of dict, and only plain"),
        ({1: torch.ones(2)}, "1 of Tensor (torch.float32, torch.strided, cpu), and only plain"),
        ({"a": torch.eye(2).to_sparse()}, "'a' of Tensor (torch.float32, torch.sparse_coo, cpu)"),
        ({"a": torch.ones(2, device="meta")}, "'a' of Tensor (torch.float32, torch.strided, meta)"),
        ([torch.ones(2)], "list, not tensors by their names"),
    ],
)
def test_anything_but_tensors_is_named(tmp_path: Path, content: object, part: str) -> None:
    assert f"holds {part}" in refusal(save(tmp_path, content))


def test_a_wanted_tensor_has_floats(tmp_path: Path) -> None:
    path = save(tmp_path, {"a.weight": torch.ones(2, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=r"a\.weight is of torch\.int8, not of floats"):
        pickled_tensors(path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("size", [0, 3, 4, 90, -1])
def test_a_truncated_file(tmp_path: Path, size: int, zipped: bool) -> None:
    path = save(tmp_path, {"a": torch.ones(99)}, zipped=zipped)
    path.write_bytes(path.read_bytes()[:size])
    assert "is not a readable file of torch.save: " in refusal(path)
