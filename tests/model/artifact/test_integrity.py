"""References of a graph to files, byte by byte; test_manifest.py tests files and hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

from model.artifact import integrity
from model.artifact.integrity import check_file, check_locations, check_references
from model.errors import ArtifactError


def graph_at(path: Path, *locations: str) -> Path:
    """Write a graph with a tensor in each of these files."""
    graph = onnx.GraphProto()
    for location in locations:
        tensor = graph.initializer.add(data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
    path.write_bytes(onnx.ModelProto(graph=graph).SerializeToString())
    return path


@pytest.mark.parametrize(
    ("locations", "allowed", "right"),
    [
        ([], [], True),
        (["a.data"], ["a.data"], True),
        (["a.data", "b.data"], ["b.data", "a.data"], True),
        (["a.data"], [], False),
        (["a.data", "c.data"], ["a.data", "b.data"], False),
        (["../a.data"], ["a.data"], False),
    ],
)
def test_tensors_are_in_these_files_alone(
    tmp_path: Path, locations: list[str], allowed: list[str], right: bool
) -> None:
    graph = graph_at(tmp_path / "graph.onnx", *locations)
    if right:
        check_locations(graph, allowed)
        return
    with pytest.raises(ArtifactError, match="has tensors in another file than"):
        check_locations(graph, allowed)


def test_a_file_has_its_size_and_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    check_file(path, digest, 3)
    with pytest.raises(ArtifactError, match="has 3 bytes instead of 4"):
        check_file(path, digest, 4)
    with pytest.raises(ArtifactError, match="damaged"):
        check_file(path, hashlib.sha256(b"abd").hexdigest(), 3)


@pytest.mark.parametrize(
    ("file", "allowed", "says"),
    [
        ("weights.safetensors", ["weights.safetensors"], None),
        ("weights.safetensors", [], "has tensors in another file than its own"),
        ("other", ["weights.safetensors"], "has tensors in another file than weights.safetensors"),
        ("../weights.safetensors", ["../weights.safetensors"], "cannot be read"),
        (None, ["weights.safetensors"], "cannot be read"),
    ],
)
def test_tensors_are_shared_with_these_files_alone(
    tmp_path: Path, file: str | None, allowed: list[str], says: str | None
) -> None:
    path = tmp_path / "heads.safetensors"
    shared = {"a": [file, "b", [1], [0]]} if file else []
    save_file({"c": np.ones(2, np.float32)}, path, {"shared": json.dumps(shared)})
    if says is None:
        check_references(path, allowed)
        return
    with pytest.raises(ArtifactError, match=says):
        check_references(path, allowed)


def test_a_file_is_read_once_while_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "file", list[Path]()
    monkeypatch.setattr(integrity, "sha256_of", lambda file: read.append(file) or len(read))
    path.write_bytes(b"abc")
    assert [integrity.sha256_once(path) for _ in range(3)] == [1, 1, 1]
    path.write_bytes(b"abcd")
    assert integrity.sha256_once(path) == 2


def test_a_large_file_is_hashed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "_READ_BYTES", 4)
    for content in (b"", b"abc", b"abcd", b"abcdefghi"):
        (tmp_path / "file").write_bytes(content)
        assert integrity.sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()
