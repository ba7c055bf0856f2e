"""Checkpoints with a replaced pooling, as seen by all readers of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.artifact.logit_score import LogitScore, read_logit_score
from model.artifact.sentence import SentenceConfig
from model.artifact.task import sparse_pooling, task_kind
from model.errors import ConfigError
from model.sources.overlay import (
    YES_NO,
    PoolingSetting,
    may_be_dense_or_sparse,
    may_be_reranker,
    with_pooling,
)

TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def write(folder: Path, architecture: str, modules: list[Any] | None = None) -> Path:
    """Write the descriptions of a checkpoint of 8 features."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "2_Normalize").mkdir()
    pooling = {"word_embedding_dimension": 8, "pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    config = {"model_type": "bert", "architectures": [architecture], "hidden_size": 8}
    (folder / "config.json").write_text(json.dumps(config))
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.mark.parametrize(
    ("pooling", "mode"), [("cls", "cls"), ("mean", "mean"), ("last-token", "last")]
)
@pytest.mark.parametrize("modules", [None, [TRANSFORMER, POOLING, NORMALIZE]])
def test_a_dense_pooling_takes_the_place_of_the_checkpoints(
    tmp_path: Path, modules: list[Any] | None, pooling: PoolingSetting, mode: str
) -> None:
    """Modules after pooling stay."""
    folder = write(tmp_path / "a", "BertModel", modules)
    found = with_pooling(folder, pooling, tmp_path / "poolings")
    sentence = SentenceConfig.from_checkpoint(found, 512, 8)
    assert (sentence.pooling, sentence.normalize) == (mode, modules is not None)
    assert json.loads((found / "config.json").read_text())["hidden_size"] == 8


@pytest.mark.parametrize("modules", [None, [TRANSFORMER, POOLING]])
def test_splade_is_the_maximum_of_log1p_relu(tmp_path: Path, modules: list[Any] | None) -> None:
    folder = write(tmp_path / "a", "BertForMaskedLM", modules)
    assert task_kind(folder) is None
    found = with_pooling(folder, "splade", tmp_path / "poolings")
    assert task_kind(found) == "sparse"
    assert sparse_pooling(found) == {"pooling": "max", "activation": "relu"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"model": {"vocab": {"yes": 7, "no": 4}}}),
        ("vocab.json", {"yes": 7, "no": 4}),
    ],
)
def test_yes_no_compares_two_words(tmp_path: Path, name: str, content: Any) -> None:
    """Its chat template replaces that of the checkpoint, which is for conversations."""
    folder = write(tmp_path / "a", "Qwen3ForCausalLM")
    (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text("of conversations")
    assert may_be_reranker(folder)
    found = with_pooling(folder, "yes-no", tmp_path / "poolings")
    assert not may_be_reranker(found)
    assert read_logit_score(found) == LogitScore(
        true_token_id=7, false_token_id=4, chat_template=YES_NO
    )
    (folder / name).write_text("{}")
    with pytest.raises(ConfigError, match="--pooling yes-no needs 'yes' in the vocabulary"):
        with_pooling(folder, "yes-no", tmp_path / "poolings")


def test_the_folder_is_made_once_for_each_pooling(tmp_path: Path) -> None:
    folder, poolings = write(tmp_path / "a", "BertForMaskedLM"), tmp_path / "poolings"
    first = with_pooling(folder, "splade", poolings)
    assert (
        with_pooling(folder, "splade", poolings) == first != with_pooling(folder, "cls", poolings)
    )
    assert len(list(poolings.iterdir())) == 2
    (folder / "vocab.txt").write_text("a")
    assert (with_pooling(folder, "splade", poolings) / "vocab.txt").read_text() == "a"


@pytest.mark.parametrize(
    ("architecture", "modules", "pooling", "says"),
    [
        ("BertModel", None, "splade", "--pooling splade needs the logits of words"),
        ("Qwen3Model", None, "yes-no", "--pooling yes-no reads checkpoints of Qwen3-Reranker"),
        ("Qwen3ForCausalLM", [TRANSFORMER, POOLING], "yes-no", "without modules.json"),
        ("BertModel", [TRANSFORMER, NORMALIZE], "cls", "--pooling cls has no Pooling to replace"),
    ],
)
def test_a_pooling_that_does_not_fit_is_refused(
    tmp_path: Path, architecture: str, modules: list[Any] | None, pooling: Any, says: str
) -> None:
    folder = write(tmp_path / "a", architecture, modules)
    with pytest.raises(ConfigError, match=says):
        with_pooling(folder, pooling, tmp_path / "poolings")


@pytest.mark.parametrize(
    ("architecture", "modules", "either"),
    [
        ("BertForMaskedLM", None, True),
        ("BertForMaskedLM", [TRANSFORMER, POOLING], False),
        ("BertModel", None, False),
    ],
)
def test_a_masked_language_model_without_modules_may_be_either(
    tmp_path: Path, architecture: str, modules: list[Any] | None, either: bool
) -> None:
    assert may_be_dense_or_sparse(write(tmp_path / "a", architecture, modules)) == either
