"""Detection of task heads, with transformers' and sentence-transformers' own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.artifact.task import sparse_pooling, task_kind
from model.errors import ConfigError
from model.numerics.task_head import TaskConfig, TaskKind

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
        ({"pooling_strategy": "mean"}, "pooling_strategy 'mean' is not supported; max and sum"),
        ({"activation_function": "gelu"}, "activation_function 'gelu' is not supported; relu"),
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


@pytest.mark.parametrize("content", ["{", "[1]", "{}"])
def test_modules_that_are_none_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=r"modules\.json"):
        task_kind(tmp_path)


def test_shapes() -> None:
    token = TaskConfig(kind="token_classification", outputs=3, pooling="none")
    sparse = TaskConfig(kind="sparse", outputs=60, pooling="max")
    assert (token.shape(7), sparse.shape(7)) == ((7, 3), (60,))
