"""Kinds of models, in folders that sentence-transformers itself writes where it can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import CrossEncoder, SparseEncoder

from model.artifact.sentence import (
    SentenceConfig,
    check_architecture,
    check_model_type,
    check_modules,
)
from model.artifact.task import task_kind
from model.errors import ConfigError
from tests.model.checkpoints import edit_json

HERE = Path("a/folder")


def refusal(check: Any, *arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("MLMTransformer", "SPLADE"),
        ("SpladePooling", "SPLADE"),
        ("SparseAutoEncoder", "SPLADE"),
        ("SparseStaticEmbedding", "SPLADE"),
        ("MultiVectorMask", "ColBERT"),
        ("pylate.models.Dense.Dense", "ColBERT"),
        ("LogitScore", "cross-encoder"),
        ("CLIPModel", "images"),
        ("WordEmbeddings", "not computed by a transformer"),
        ("BoW", "not computed by a transformer"),
        ("LSTM", "not computed by a transformer"),
        ("CNN", "not computed by a transformer"),
        ("Router", "an encoder for each kind of input"),
        ("WeightedLayerPooling", "several layers"),
    ],
)
def test_modules_of_other_kinds_are_named(kind: str, what: str) -> None:
    message = refusal(check_modules, HERE, ["Transformer", kind])
    assert message.startswith(f"{HERE}: the module {kind} is not supported: ")
    assert what in message
    assert "give a checkpoint" in message


@pytest.mark.parametrize(
    "kinds",
    [
        [],
        ["Transformer"],
        ["Transformer", "Normalize"],
        ["Pooling", "Transformer"],
        ["Transformer", "Dense", "Pooling"],
        ["custom_st.Transformer", "Pooling"],
        ["Transformer", "Pooling", "Pooling"],
    ],
    ids=str,
)
def test_another_order_of_modules_is_refused(kinds: list[str]) -> None:
    message = refusal(check_modules, HERE, kinds)
    assert f"the modules {' → '.join(kinds) or '(none)'} are not supported; Transformer" in message


def test_modules_of_one_vector_are_taken() -> None:
    check_modules(HERE, ["Transformer", "Pooling"])
    check_modules(HERE, ["Transformer", "Pooling", "Normalize", "Dense", "Dropout", "LayerNorm"])


@pytest.mark.parametrize(
    ("architectures", "pooling"),
    [
        (None, "mean"),
        (["BertModel"], "mean"),
        (["BertForMaskedLM"], "mean"),
        (["BertForPreTraining"], "mean"),
        (["Qwen3ForCausalLM"], "last"),
    ],
)
def test_plain_folders_have_the_librarys_pooling(architectures: Any, pooling: str) -> None:
    assert check_architecture(HERE, {"architectures": architectures}) == pooling


def test_a_causal_model_made_bidirectional_has_the_mean() -> None:
    config = {"architectures": ["Qwen3ForCausalLM"], "is_causal": False}
    assert check_architecture(HERE, config) == "mean"


@pytest.mark.parametrize(
    ("architecture", "what"),
    [("BertForSequenceClassification", "cross-encoder"), ("HF_ColBERT", "ColBERT")],
)
def test_other_architectures_are_named(architecture: str, what: str) -> None:
    message = refusal(check_architecture, HERE, {"architectures": [architecture]})
    assert f"the architecture {architecture} is not supported: " in message
    assert what in message
    assert "is not a list" in refusal(check_architecture, HERE, {"architectures": architecture})


def test_an_unknown_class_is_named() -> None:
    check_model_type(HERE, {"model_type": "SentenceTransformer"})
    check_model_type(HERE, {})
    assert "model_type 'Other' is not" in refusal(check_model_type, HERE, {"model_type": "Other"})


def test_a_cross_encoder_of_the_library_is_read(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """It has a task head, and no pooling."""
    CrossEncoder(str(tiny_checkpoint), num_labels=1, device="cpu").save(str(tmp_path))
    assert task_kind(tmp_path) == "sequence_classification"
    assert SentenceConfig.from_checkpoint(tmp_path, 40, 12).max_length == 40
    (tmp_path / "modules.json").unlink(missing_ok=True)  # as versions up to 5 left it
    assert task_kind(tmp_path) == "sequence_classification"
    assert SentenceConfig.from_checkpoint(tmp_path, 40, 12).max_length == 40


def test_a_splade_of_the_library_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    SparseEncoder(str(tiny_checkpoint), device="cpu").save(str(tmp_path))
    assert "'SparseEncoder'" in refusal(SentenceConfig.from_checkpoint, tmp_path, 40, 12)
    edit_json(tmp_path / "config_sentence_transformers.json", model_type=None)
    assert "sparse vectors" in refusal(SentenceConfig.from_checkpoint, tmp_path, 40, 12)
