"""Cache keys: a different export has a different key; errors at a file name that file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError

from model.artifact import integrity
from model.artifact.integrity import exporter_version, writing
from model.errors import ArtifactError, SourceError
from model.sources.files import cache_key
from tests.model.sentences import modules_of, write_modules

FILES = {
    "config.json": "{}",
    "model.safetensors": "weights",
    "tokenizer.json": "{}",
    "tokenizer_config.json": "{}",
    "vocab.txt": "[PAD]",
    "source.spm": "pieces",
    "sentencepiece.bpe.model": "pieces",
    "artifact.metadata": "{}",
    "modules.json": json.dumps(modules_of("Transformer", "Pooling", "Dense")),
    "sentence_bert_config.json": "{}",
    "config_sentence_transformers.json": "{}",
    "1_Pooling/config.json": "{}",
    "2_Dense/config.json": "{}",
    "2_Dense/model.safetensors": "weights",
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "checkpoint"


def key(checkpoint: Path, model: str = "a/model", precision: str = "fp32") -> str:
    return cache_key(checkpoint, model, precision)


def test_it_is_a_folder_name(checkpoint: Path) -> None:
    assert re.fullmatch("[0-9a-f]{32}", key(checkpoint))


def test_a_transformer_in_a_folder_of_its_own_counts(checkpoint: Path) -> None:
    (checkpoint / "0_Transformer").mkdir()
    (checkpoint / "config.json").rename(checkpoint / "0_Transformer" / "config.json")
    with pytest.raises(SourceError, match=r"there is no config\.json"):
        key(checkpoint)
    write_modules(checkpoint, "Transformer", "Pooling", first="0_Transformer")
    before = key(checkpoint)
    (checkpoint / "0_Transformer" / "vocab.txt").write_text("[PAD]")
    assert key(checkpoint) != before


@pytest.mark.parametrize("name", FILES)
def test_it_changes_with_every_file_that_counts(checkpoint: Path, name: str) -> None:
    before = key(checkpoint)
    path = checkpoint / name
    path.write_text(path.read_text() + " ")
    changed = key(checkpoint)
    assert changed != before
    path.write_text(FILES[name])
    assert key(checkpoint) == before
    if name != "config.json":
        path.unlink()
        assert key(checkpoint) not in (before, changed)


def test_it_changes_when_contents_change_places(checkpoint: Path) -> None:
    (checkpoint / "vocab.txt").write_text("one")
    (checkpoint / "tokenizer.json").write_text("two")
    before = key(checkpoint)
    (checkpoint / "vocab.txt").write_text("two")
    (checkpoint / "tokenizer.json").write_text("one")
    assert key(checkpoint) != before


def test_it_changes_when_a_file_is_renamed(checkpoint: Path) -> None:
    (checkpoint / "added_tokens.json").write_text("{}")
    before = key(checkpoint)
    (checkpoint / "added_tokens.json").rename(checkpoint / "added_words.json")
    assert key(checkpoint) != before


def test_it_changes_with_name_precision_and_bits(checkpoint: Path) -> None:
    keys = [
        key(checkpoint),
        key(checkpoint, model="another/model"),
        key(checkpoint, precision="fp16"),
        key(checkpoint, model="a/modelfp32", precision=""),
        key(checkpoint, precision="int8"),
        cache_key(checkpoint, "a/model", "int8", 7),
        cache_key(checkpoint, "a/model", "int8", 8),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "name", ["README.md", "pytorch_model.bin", ".gitattributes", "onnx/a.onnx"]
)
def test_it_does_not_change_with_other_files_and_times(checkpoint: Path, name: str) -> None:
    before = key(checkpoint)
    os.utime(checkpoint / "model.safetensors", (1, 1))
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_text("new")
    assert key(checkpoint) == before


def test_it_changes_with_pickled_weights_that_are_read(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    keys = set()
    for content in (b"", b"a"):
        (checkpoint / "pytorch_model.bin").write_bytes(content)
        keys.add(key(checkpoint))
    assert len(keys) == 2


def test_it_does_not_depend_on_the_place(checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(checkpoint, tmp_path / "elsewhere"))
    assert key(copy) == key(checkpoint)


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no config\.json"):
        key(tmp_path)


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxscript", "tokenizers"])
def test_the_exporter_is_another_with_other_packages(
    checkpoint: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, key_before = exporter_version(), key(checkpoint)
    real = importlib.metadata.version

    def version(name: str, to: str) -> str:
        return to if name == package else real(name)

    for to in ("0.0.1", "0.0.2"):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, to=to: version(name, to))
        assert exporter_version() != before
        assert key(checkpoint) != key_before
    newer = exporter_version()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version(name, "0.0.2+cpu"))
    assert exporter_version() == newer  # the build does not change the version


MODEL = Path(integrity.__file__).parents[1]
FOLDERS = sorted({path.parent.relative_to(MODEL).as_posix() for path in MODEL.rglob("*.py")})


def test_the_source_has_folders_in_it() -> None:
    assert {".", "artifact", "export", "families", "runtimes"} <= {*FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_exporter_is_another_with_other_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    copy = Path(shutil.copytree(MODEL, tmp_path / "model"))
    seen = [exporter_version()]
    monkeypatch.setattr(integrity, "__file__", str(copy / "artifact" / "integrity.py"))
    assert exporter_version() == seen[0]
    file = copy / folder / "more.py"
    for content in ("", "# changed\n"):
        file.write_text(content)
        seen.append(exporter_version())
    file.rename(file.with_name("other.py"))
    seen.append(exporter_version())
    file.with_name("other.py").rename(copy / folder / "texts.txt")
    seen.append(exporter_version())
    assert len(set(seen)) == 5


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (RuntimeError("of a library,\n  at length"), "of a library, at length"),
        (SafetensorError("I/O error"), "I/O error"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_what_cannot_be_written_is_one_line(tmp_path: Path, error: Exception, reason: str) -> None:
    path = tmp_path / "file"
    with pytest.raises(ArtifactError) as refused, writing(path):
        raise error
    assert str(refused.value) == f"{path} cannot be written: {reason}"
