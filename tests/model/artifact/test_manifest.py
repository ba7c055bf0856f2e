"""Manifests: files and hashes, modules, and task heads, as transformers and its kin write them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model.artifact.manifest import (
    FILES,
    Artifact,
    load_artifact,
    record_file,
    share_files,
    write_manifest,
)
from model.artifact.verification import Verdict
from model.errors import ArtifactError, ConfigError
from model.numerics.task_head import TaskConfig, TaskKind
from model.sources.files import ModuleEntry, listed_modules, transformer_folder
from model.sources.task_files import sparse_pooling, task_kind
from tests.model.refusals import refused

NAMES = (
    "attention.onnx",
    "decomposition.onnx",
    "decomposition_values.onnx",
    "device_attention.onnx",
    "device_pooling.onnx",
    "encoder.onnx",
    "encoder.onnx.data",
    "golden.safetensors",
    "head_scores.onnx",
    "heads.safetensors",
    "modules.safetensors",
    "tokenizer.json",
    "value_norms.onnx",
    "weights.safetensors",
)


def refusal(folder: Path) -> str:
    return refused(ArtifactError, folder, load_artifact, folder)


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_an_artifact_holds_these_files_and_nothing_else(tiny_artifact: Artifact) -> None:
    found = sorted(path.name for path in tiny_artifact.folder.iterdir())
    assert found == sorted((*NAMES, "manifest.json"))
    assert set(FILES) == set(NAMES)


def test_a_good_artifact_is_loaded_from_any_folder(
    tiny_artifact: Artifact, artifact_copy: Path
) -> None:
    artifact = load_artifact(tiny_artifact.folder)
    assert artifact == tiny_artifact
    assert load_artifact(artifact_copy) == tiny_artifact.at(artifact_copy)
    content = (artifact.folder / "manifest.json").read_bytes()
    assert artifact.sha256 == hashlib.sha256(content).hexdigest()
    for name, record in artifact.manifest.files.items():
        content = artifact.path(name).read_bytes()
        assert record.bytes == len(content)
        assert record.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_refused_by_name(artifact_copy: Path, name: str) -> None:
    path = artifact_copy / name
    content = path.read_bytes()
    for position in {0, len(content) // 2, len(content) - 1} if content else ():
        flipped = bytearray(content)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        assert f"{name} is damaged" in refusal(artifact_copy)
    for other in (content[:-1], content[: len(content) // 2], content + b"\0"):
        path.write_bytes(other)
        if len(other) != len(content):
            said = f"{name} has {len(other)} bytes instead of {len(content)}"
            assert said in refusal(artifact_copy)
    path.unlink()
    assert f"{name} is missing" in refusal(artifact_copy)
    path.mkdir()
    assert f"{name} is missing" in refusal(artifact_copy)


@pytest.mark.parametrize("name", [*NAMES, "manifest.json"])
def test_a_link_is_refused_even_to_the_right_bytes(artifact_copy: Path, name: str) -> None:
    path = artifact_copy / name
    path.symlink_to(shutil.move(path, artifact_copy.parent / name))
    assert name in refusal(artifact_copy)


def test_a_folder_without_a_manifest_is_refused(artifact_copy: Path, tmp_path: Path) -> None:
    (artifact_copy / "manifest.json").unlink()
    assert "it holds no manifest.json" in refusal(artifact_copy)
    assert "it holds no manifest.json" in refusal(tmp_path / "absent")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff", b'{"format": 1}', b"{}\n{}", b"[" * 10**5]
)
def test_a_manifest_that_is_no_manifest_is_refused(artifact_copy: Path, content: bytes) -> None:
    (artifact_copy / "manifest.json").write_bytes(content)
    assert "manifest.json is invalid" in refusal(artifact_copy)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda m: m.update(format=11), "format: this version reads 12; export the model again"),
        (lambda m: m.update(format=13), "format: this version reads 12"),
        (lambda m: m.update(format="12"), "format: this version reads 12"),
        (lambda m: m.update(runtime="jax"), "runtime"),
        (lambda m: m.update(precision="fp8"), "precision"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.pop("exporter"), "exporter"),
        (lambda m: m["config"].update(num_attention_heads=5), "config"),
        (lambda m: m["sentence"].update(pooling="median"), "sentence.pooling"),
        (lambda m: m["signature"].update(pooler=m["signature"]["encoder"]), "signature.pooler"),
        (lambda m: m["files"]["tokenizer.json"].pop("sha256"), "files.tokenizer.json.sha256"),
        (
            lambda m: m["verification"]["heads"].update(passed="perhaps"),
            "verification.heads.passed",
        ),
        (lambda m: m["verification"].pop("provider"), "verification.provider"),
    ],
)
def test_an_invalid_manifest_is_refused_by_field(
    artifact_copy: Path, edit: Callable[[dict[str, Any]], object], named: str
) -> None:
    edit_manifest(artifact_copy, edit)
    assert f"manifest.json is invalid: {named}" in refusal(artifact_copy)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_listed_is_refused(artifact_copy: Path, name: str) -> None:
    edit_manifest(artifact_copy, lambda m: m["files"].pop(name))
    assert "manifest.json does not list exactly" in refusal(artifact_copy)


@pytest.mark.parametrize("name", ["../checkpoint/config.json", "/etc/hostname", "extra", ""])
def test_a_file_that_should_not_be_listed_is_refused(artifact_copy: Path, name: str) -> None:
    record = {"sha256": "0" * 64, "bytes": 1}
    edit_manifest(artifact_copy, lambda m: m["files"].update({name: record}))
    assert "manifest.json does not list exactly" in refusal(artifact_copy)


def test_writing_a_manifest_leaves_nothing_else_behind(
    tiny_artifact: Artifact, artifact_copy: Path
) -> None:
    before = {path.name for path in artifact_copy.iterdir()}
    write_manifest(artifact_copy, tiny_artifact.manifest.model_copy(update={"model": "another"}))
    assert load_artifact(artifact_copy).manifest.model == "another"
    assert {path.name for path in artifact_copy.iterdir()} == before


def test_an_infinite_difference_can_be_written_and_read(
    tiny_artifact: Artifact, artifact_copy: Path
) -> None:
    """Verification finds it when an encoder overflows; JSON has no infinity."""
    failed = Verdict(passed=False, failed="hidden state 1")
    found = {"max_abs_diff_below": {"hidden": None}, "vectors": failed, "heads": failed}
    record = tiny_artifact.manifest.verification.model_copy(update=found)
    manifest = tiny_artifact.manifest.model_copy(update={"verification": record})
    write_manifest(artifact_copy, manifest)
    assert load_artifact(artifact_copy).manifest == manifest


def test_the_module_needs_neither_torch_nor_a_runtime() -> None:
    program = (
        "import sys, model.artifact.manifest\n"
        "print({'torch', 'onnx', 'onnxruntime', 'openvino'}.intersection(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "set()\n"


def write(folder: Path, *entries: Any) -> Path:
    (folder / "modules.json").write_text(json.dumps(list(entries)))
    return folder


def entry(kind: str, path: str | None = "") -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": kind}


def test_without_the_file_the_folder_is_the_transformer(tmp_path: Path) -> None:
    assert listed_modules(tmp_path) is None
    assert transformer_folder(tmp_path) == tmp_path


@pytest.mark.parametrize("package", ["models", "base.modules", "sentence_transformer.modules"])
def test_classes_of_every_release_have_one_name(tmp_path: Path, package: str) -> None:
    types = ("Transformer", f"sentence_transformers.{package}.Pooling", "pylate.models.Dense.Dense")
    folder = write(tmp_path, *(entry(kind, name) for kind, name in zip(types, "abc", strict=True)))
    kinds = ("Transformer", "Pooling", "pylate.models.Dense.Dense")
    expected = [
        ModuleEntry(kind, folder / name, f"{name}/")
        for kind, name in zip(kinds, "abc", strict=True)
    ]
    assert listed_modules(folder) == expected
    assert [module.name for module in expected] == ["Transformer", "Pooling", "Dense"]


@pytest.mark.parametrize(
    ("path", "inside"), [("", "."), (None, "."), ("0_Transformer", "0_Transformer"), ("a/", "a")]
)
def test_a_transformer_may_have_a_folder_of_its_own(
    tmp_path: Path, path: str | None, inside: str
) -> None:
    write(tmp_path, entry("sentence_transformers.models.Transformer", path))
    assert transformer_folder(tmp_path) == tmp_path / inside


def test_another_first_module_says_nothing_of_the_transformer(tmp_path: Path) -> None:
    assert transformer_folder(write(tmp_path, entry("CNN", "0_CNN"))) == tmp_path
    assert transformer_folder(write(tmp_path)) == tmp_path


@pytest.mark.parametrize("path", ["../a", "a/b", "/etc", "..", "../", "a/../a"])
def test_folders_elsewhere_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="is not a folder beside it"):
        transformer_folder(write(tmp_path, entry("Transformer", path)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "is not readable JSON"), ("{}", "not a list"), ("[3]", "not a list")],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=reason):
        listed_modules(tmp_path)


SPLADE = "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"


def folder_of(path: Path, *modules: str, task: str | None = None, **config: Any) -> Path:
    """Write a folder with these modules, or none, and these keys in `config.json`."""
    (path / "config.json").write_text(json.dumps(config))
    if modules:
        listed = [{"type": kind, "path": f"{i}" if i else ""} for i, kind in enumerate(modules)]
        (path / "modules.json").write_text(json.dumps(listed))
    if task:
        (path / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": task}))
    return path


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("BertForSequenceClassification", "sequence_classification"),
        ("ModernBertForTokenClassification", "token_classification"),
        ("BertForMaskedLM", None),
        ("BertForPreTraining", None),
        ("BertModel", None),
    ],
)
def test_without_modules_the_architecture_decides(
    tmp_path: Path, architecture: str, kind: TaskKind | None
) -> None:
    assert task_kind(folder_of(tmp_path, architectures=[architecture])) == kind


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": "odd"}])
def test_no_architecture_is_no_task(tmp_path: Path, config: dict[str, Any]) -> None:
    assert task_kind(folder_of(tmp_path, **config)) is None


TRANSFORMER = "sentence_transformers.base.modules.transformer.Transformer"


@pytest.mark.parametrize(
    ("modules", "task", "kind"),
    [
        ([TRANSFORMER], "sequence-classification", "sequence_classification"),
        ([TRANSFORMER, SPLADE], "fill-mask", "sparse"),
        (["sentence_transformers.sparse_encoder.models.MLMTransformer", SPLADE], None, "sparse"),
        (["sentence_transformers.models.Transformer"], None, None),
        ([TRANSFORMER, "sentence_transformers.models.Pooling"], "feature-extraction", None),
        ([TRANSFORMER, "sentence_transformers.models.Pooling"], "fill-mask", None),
        ([TRANSFORMER, "somebody.elses.SpladePooling"], "fill-mask", None),
        ([TRANSFORMER, SPLADE, "sentence_transformers.models.Normalize"], "fill-mask", None),
    ],
)
def test_modules_decide_where_there_are_some(
    tmp_path: Path, modules: list[str], task: str | None, kind: TaskKind | None
) -> None:
    """modules.json takes precedence over the architecture."""
    architectures = ["BertForSequenceClassification"]
    folder = folder_of(tmp_path, *modules, task=task, architectures=architectures)
    assert task_kind(folder) == kind


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"pooling_strategy": "mean"}, "'mean' is not supported; 'max' and 'sum' are"),
        ({"activation_function": "gelu"}, "'gelu' is not supported; 'relu' and 'log1p_relu' are"),
    ],
)
def test_sparse_pooling_that_is_not_known_is_refused(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    folder = folder_of(tmp_path, TRANSFORMER, SPLADE)
    (folder / "1").mkdir()
    (folder / "1" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=says):
        sparse_pooling(folder)


def test_sparse_pooling_has_sentence_transformers_defaults(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, TRANSFORMER, SPLADE)
    assert sparse_pooling(folder) == {"pooling": "max", "activation": "relu"}


def test_shapes() -> None:
    token = TaskConfig(kind="token_classification", outputs=3, pooling="none")
    sparse = TaskConfig(kind="sparse", outputs=60, pooling="max")
    assert (token.shape(7), sparse.shape(7)) == ((7, 3), (60,))


def artifact_at(folder: Path, **contents: bytes) -> Any:
    """Return an artifact that only has files."""
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    records = {name: record_file(folder / name) for name in contents}
    listed = {name: record.model_dump() for name, record in records.items()}
    (folder / "manifest.json").write_text(json.dumps({"files": listed}))
    manifest = SimpleNamespace(files=records)
    return SimpleNamespace(manifest=manifest, folder=folder, path=folder.joinpath)


def no_links(*_: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


def test_large_files_of_the_same_content_are_shared_under_any_name(tmp_path: Path) -> None:
    first = artifact_at(tmp_path / "first", weights=b"w" * 2**20, small=b"s", other=b"o" * 2**20)
    second = artifact_at(tmp_path / "second", data=b"w" * 2**20, small=b"s", own=b"p" * 2**20)
    (tmp_path / "no artifact").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("[]")
    share_files(second, sorted(each for each in tmp_path.iterdir() if each != second.folder))
    assert second.path("data").samefile(first.path("weights"))
    assert second.path("data").read_bytes() == b"w" * 2**20
    assert not second.path("small").samefile(first.path("small"))
    assert second.path("own").stat().st_nlink == 1
    assert sorted(path.name for path in second.folder.iterdir()) == [
        *("data", "manifest.json", "own", "small")
    ]


def test_a_damaged_file_is_not_shared(tmp_path: Path) -> None:
    first = artifact_at(tmp_path / "first", weights=b"w" * 2**20)
    first.path("weights").write_bytes(b"v" * 2**20)
    link = artifact_at(tmp_path / "link", weights=b"w" * 2**20)
    link.path("weights").rename(tmp_path / "outside")
    link.path("weights").symlink_to(tmp_path / "outside")
    second = artifact_at(tmp_path / "second", weights=b"w" * 2**20)
    share_files(second, [first.folder, link.folder])
    assert second.path("weights").read_bytes() == b"w" * 2**20
    assert second.path("weights").stat().st_nlink == 1


def test_a_file_system_without_links_keeps_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = artifact_at(tmp_path / "first", weights=b"w" * 2**20)
    second = artifact_at(tmp_path / "second", weights=b"w" * 2**20)
    monkeypatch.setattr(os, "link", no_links)
    share_files(second, [first.folder])
    assert second.path("weights").read_bytes() == b"w" * 2**20
    assert not second.path("weights").samefile(first.path("weights"))
    assert len([*second.folder.iterdir()]) == 2
