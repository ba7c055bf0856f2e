"""Files of late-interaction models, and errors that name unsupported settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.artifact.late_files import is_late_interaction, read_late_files
from model.artifact.sentence import SentenceConfig
from model.artifact.task import task_kind
from model.errors import ConfigError
from model.numerics.vector_modules import Dense
from tests.model.checkpoints import edit_json
from tests.model.sentences import write_modules

SETTINGS = "config_sentence_transformers.json"
NAME = "token_embeddings"
DENSE = {"in_features": 12, "out_features": 6, "module_input_name": NAME}
EXPANSION = {"strategy": "min", "length": 8, "attend": True, "token": None}


def native(folder: Path) -> Path:
    """Write sentence-transformers' format, without weights."""
    write_modules(folder, "Transformer", "Dense", "MultiVectorMask", "Normalize")
    edit_json(folder / SETTINGS, model_type="MultiVectorEncoder", similarity_fn_name="meanmaxsim")
    edit_json(folder / "1_Dense" / "config.json", **DENSE)
    edit_json(folder / "2_MultiVectorMask" / "config.json", skiplist_tasks="query")
    edit_json(folder / "3_Normalize" / "config.json", module_input_name=NAME)
    edit_json(
        folder / "sentence_bert_config.json",
        document_length=30,
        query_length=9,
        query_expansion=EXPANSION,
        max_seq_length=20,
    )
    edit_json(folder / "config.json", model_type="bert")
    return folder


def pylate(folder: Path) -> Path:
    """Write PyLate's format, without weights."""
    write_modules(folder, "Transformer", "Dense")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    edit_json(folder / SETTINGS, query_prefix="[Q] ", document_prefix="[D] ")
    edit_json(folder / "1_Dense" / "config.json", in_features=12, out_features=6)
    return folder


def stanford(folder: Path) -> Path:
    """Write Stanford's format, without weights and metadata."""
    edit_json(folder / "config.json", architectures=["HF_ColBERT"], hidden_size=12)
    return folder


@pytest.mark.parametrize("write", [native, pylate, stanford])
def test_the_forms_are_recognised(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    assert is_late_interaction(write(tmp_path))
    assert task_kind(tmp_path) == "late_interaction"


def test_sentence_transformers_form(tmp_path: Path) -> None:
    files = read_late_files(native(tmp_path))
    assert [module.kind for module in files.modules] == ["Dense", "Normalize"]
    assert files.prompts == {"query": "", "document": ""}
    assert (files.query_length, files.document_length, files.similarity) == (9, 30, "meanmaxsim")
    assert files.expansion is not None
    assert files.expansion.model_dump() == EXPANSION
    assert (files.skipped, files.skipped_in, files.markers) == ((), ("query",), ())
    sentence = SentenceConfig.from_checkpoint(tmp_path, 40, 12)
    assert (sentence.max_length, sentence.similarity_fn_name) == (20, "meanmaxsim")
    assert (sentence.prompts, sentence.normalize) == ({"query": "", "document": ""}, False)


def test_pylates_form(tmp_path: Path) -> None:
    files = read_late_files(pylate(tmp_path))
    assert isinstance(files.modules[0], Dense)
    assert files.modules[0].activation == "Tanh"  # sentence-transformers' where the file is silent
    assert files.markers == ("[Q] ", "[D] ")
    assert files.expansion is not None
    assert (files.expansion.strategy, files.expansion.length) == ("fixed", 32)
    assert {"!", "~"} <= set(files.skipped)
    edit_json(tmp_path / SETTINGS, prompts={"query": "[Q] ask: ", "document": "say: ", "x": None})
    assert read_late_files(tmp_path).prompts == {
        "query": "[Q] ask: ",
        "document": "[D] say: ",
        "x": "",
    }
    edit_json(tmp_path / SETTINGS, query_expansion=EXPANSION, query_length=9, skiplist_words=[])
    files = read_late_files(tmp_path)
    assert (files.query_length, files.skipped) == (9, ())


def test_stanfords_form(tmp_path: Path) -> None:
    files = read_late_files(stanford(tmp_path))
    assert files.prompts == {"query": "[unused0] ", "document": "[unused1] "}
    assert files.expansion is not None
    assert (files.expansion.length, files.expansion.attend) == (32, False)
    assert isinstance(files.modules[0], Dense)
    assert (files.modules[0].in_features, files.modules[0].out_features) == (12, 128)


@pytest.mark.parametrize(
    ("write", "file", "changes", "part"),
    [
        (
            native,
            SETTINGS,
            {"similarity_fn_name": "cosine"},
            "similarity: Input should be 'maxsim'",
        ),
        (native, SETTINGS, {"token_pool": 2}, "token_pool is not supported"),
        (native, "1_Dense/config.json", {"module_input_name": "x"}, "'x' is not supported; 'token"),
        (native, "2_MultiVectorMask/config.json", {"keep_only_token_ids": [3]}, "keep_only_token_"),
        (native, "2_MultiVectorMask/config.json", {"skiplist_tasks": ["all"]}, "skipped_in"),
        (native, "3_Normalize/config.json", {"module_input_name": "y"}, "'y' is not supported; 't"),
        (native, "sentence_bert_config.json", {"query_expansion": {"length": 3}}, "strategy"),
        (native, "sentence_bert_config.json", {"document_length": 0}, "document_length: Input"),
        (native, "sentence_bert_config.json", {"transformer_task": "retrieval"}, "'retrieval' is"),
        (pylate, SETTINGS, {"query_pooling": 3}, "query_pooling is not supported"),
        (stanford, "artifact.metadata", {"similarity": "l2"}, "l2 is not supported; cosine is"),
        (stanford, "artifact.metadata", {"dim": "many"}, "out_features"),
    ],
)
def test_refusals(
    tmp_path: Path, write: Callable[[Path], Path], file: str, changes: Any, part: str
) -> None:
    edit_json(write(tmp_path) / file, **changes)
    with pytest.raises(ConfigError, match=part) as failed:
        read_late_files(tmp_path)
    assert "\n" not in str(failed.value)
    assert str(tmp_path) in str(failed.value)


@pytest.mark.parametrize(
    "kinds",
    [
        ["Transformer", "Dense", "Normalize"],
        ["Transformer", "MultiVectorMask", "MultiVectorMask"],
        ["Transformer", "Pooling", "MultiVectorMask"],
        ["Transformer", "Dense", "MultiVectorMask", "LayerNorm"],
        ["Transformer", "HierarchicalTokenPooling", "MultiVectorMask"],
    ],
    ids=str,
)
def test_other_modules_are_named(tmp_path: Path, kinds: list[str]) -> None:
    write_modules(tmp_path, *kinds)
    edit_json(tmp_path / SETTINGS, model_type="MultiVectorEncoder")
    with pytest.raises(ConfigError, match=f"the modules {' → '.join(kinds)} are not supported"):
        read_late_files(tmp_path)


def test_what_is_none(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", "Dense")
    assert not is_late_interaction(tmp_path)
    edit_json(tmp_path / SETTINGS, model_type="SentenceTransformer", similarity_fn_name="maxsim")
    edit_json(tmp_path / "1_Pooling" / "config.json", pooling_mode_mean_tokens=True)
    edit_json(tmp_path / "2_Dense" / "config.json", in_features=12, out_features=12)
    assert not is_late_interaction(tmp_path)
    with pytest.raises(ConfigError, match="'maxsim' needs a vector per token"):
        SentenceConfig.from_checkpoint(tmp_path, 40, 12)
