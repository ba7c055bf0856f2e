"""Search for a folder's graph and its descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.errors import CheckpointError, ConfigError, ModelError
from model.sources.foreign_exports import find_graph, is_graph


def folder_of(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[]" if path.name == "modules.json" else "{}")
    return root


@pytest.mark.parametrize(
    ("files", "graph", "checkpoint", "config", "tokenizer"),
    [
        (["model.onnx", "config.json", "vocab.txt"], "model.onnx", ".", ".", "."),
        (["onnx/model.onnx", "config.json", "tokenizer.json"], "onnx/model.onnx", ".", ".", "."),
        (
            ["onnx/any.onnx", "onnx/config.json", "onnx/tokenizer.json", "README.md"],
            *("onnx/any.onnx", "onnx", "onnx", "onnx"),
        ),
        (
            ["onnx/model.onnx", "onnx/config.json", "onnx/vocab.txt", "modules.json"],
            *("onnx/model.onnx", ".", "onnx", "onnx"),
        ),
        (
            ["onnx/model.onnx", "onnx/model_O4.onnx", "config.json", "modules.json", "vocab.txt"],
            *("onnx/model.onnx", ".", ".", "."),
        ),
        (
            ["onnx/model.onnx", "config.json", "vocab.txt", "pytorch_model.bin"],
            *("onnx/model.onnx", ".", ".", "."),
        ),
    ],
)
def test_layouts(
    tmp_path: Path, files: list[str], graph: str, checkpoint: str, config: str, tokenizer: str
) -> None:
    for place in (folder_of(tmp_path, *files), tmp_path / graph):
        found = find_graph(place)
        assert found is not None
        assert found.path == tmp_path / graph
        assert found.checkpoint == tmp_path / checkpoint
        assert found.config == tmp_path / config / "config.json"
        assert found.tokenizer == tmp_path / tokenizer


def test_a_pickle_of_a_supported_family_goes_before_a_graph(tmp_path: Path) -> None:
    folder_of(tmp_path, "onnx/model.onnx", "vocab.txt", "pytorch_model.bin")
    for model_type, supported in (("bert", True), ("roformer", False)):
        (tmp_path / "config.json").write_text(f'{{"model_type": "{model_type}"}}')
        assert (find_graph(tmp_path) is None) == supported
        assert find_graph(tmp_path, pickles=False) is not None
        assert find_graph(tmp_path / "onnx" / "model.onnx") is not None


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path, "model.onnx", "config.json", "vocab.txt")
    monkeypatch.chdir(tmp_path)
    found = find_graph(Path("model.onnx"))
    assert found is not None
    assert found.checkpoint == tmp_path


@pytest.mark.parametrize(
    "files",
    [
        ["config.json", "vocab.txt"],
        ["config.json", "model.safetensors", "onnx/model.onnx"],
        ["config.json", "model.safetensors.index.json", "onnx/model.onnx"],
        ["manifest.json", "encoder.onnx"],
        ["adapter_config.json", "model.onnx"],
    ],
)
def test_what_is_something_else(tmp_path: Path, files: list[str]) -> None:
    assert find_graph(folder_of(tmp_path, *files)) is None


@pytest.mark.parametrize(
    ("files", "kind", "part"),
    [
        (["model.onnx", "vocab.txt"], ConfigError, "there is no config.json, neither beside it"),
        (["model.onnx", "config.json"], CheckpointError, "there is no tokenizer"),
        (
            ["onnx/a.onnx", "onnx/b.onnx", "config.json"],
            CheckpointError,
            "holds several ONNX files (onnx/a.onnx, onnx/b.onnx): name one of them by its path",
        ),
        (
            ["model.onnx", "onnx/model.onnx", "config.json"],
            CheckpointError,
            "holds several ONNX files (model.onnx, onnx/model.onnx)",
        ),
    ],
)
def test_refusals(tmp_path: Path, files: list[str], kind: type[ModelError], part: str) -> None:
    with pytest.raises(kind) as failed:
        find_graph(folder_of(tmp_path, *files))
    assert part in str(failed.value)
    assert "\n" not in str(failed.value)


def test_is_graph(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.ONNX", "a.json", "folder.onnx/b")
    assert is_graph(tmp_path / "a.ONNX")
    assert not any(is_graph(tmp_path / name) for name in ("a.json", "folder.onnx", "none.onnx"))
