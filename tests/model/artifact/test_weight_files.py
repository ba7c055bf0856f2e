from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.artifact.weight_files import pickled_files, report_pickles, weight_files
from model.errors import CheckpointError
from tests.model.sentences import modules_of

SINGLE, PICKLE = "model.safetensors", "pytorch_model.bin"


def write(folder: Path, *names: str, **indices: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    for stem, shards in indices.items():
        of = "model.safetensors" if stem == "safe" else "pytorch_model.bin"
        index = {"weight_map": {str(i): shard for i, shard in enumerate(shards)}}
        (folder / f"{of}.index.json").write_text(json.dumps(index))
    return folder


def names_of(folder: Path, *, pickles: bool = True) -> list[str]:
    return [path.name for path in weight_files(folder, pickles=pickles)]


def test_safetensors_go_before_pickles(tmp_path: Path) -> None:
    write(tmp_path, PICKLE, "p.bin", pickled=["p.bin"])
    assert names_of(tmp_path) == [PICKLE]
    (tmp_path / PICKLE).unlink()
    assert names_of(tmp_path) == ["p.bin"]
    write(tmp_path, "b.safetensors", "a.safetensors", safe=["b.safetensors", "a.safetensors"])
    assert names_of(tmp_path) == ["a.safetensors", "b.safetensors"]
    write(tmp_path, SINGLE)
    assert names_of(tmp_path) == [SINGLE]


def test_pickles_that_are_not_allowed(tmp_path: Path) -> None:
    write(tmp_path, PICKLE)
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors$"):
        weight_files(tmp_path, pickles=False)


def test_an_index_names_files_of_its_own_format(tmp_path: Path) -> None:
    write(tmp_path, "p.bin", safe=["p.bin"])
    with pytest.raises(CheckpointError, match=r"names p\.bin, which is of another format"):
        weight_files(tmp_path)


def test_the_pickles_of_an_export_are_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    report_pickles(write(tmp_path, SINGLE, PICKLE), lines.append)
    assert lines == []
    (tmp_path / SINGLE).unlink()
    kinds = ("Transformer", "Pooling", "Dense", "Normalize", "Dense")
    (tmp_path / "modules.json").write_text(json.dumps(modules_of(*kinds)))
    write(tmp_path, f"2_Dense/{PICKLE}", f"4_Dense/{PICKLE}", "4_Dense/model.safetensors")
    report_pickles(tmp_path, lines.append)
    assert lines == [
        "reading tensors, and nothing else, from pickled weights: "
        "2_Dense/pytorch_model.bin, pytorch_model.bin"
    ]
    assert pickled_files(tmp_path, modules_only=True) == [tmp_path / "2_Dense" / PICKLE]
