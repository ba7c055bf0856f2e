"""Files of late interaction, rerankers by logits, towers and weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.artifact.sentence import SentenceConfig
from model.errors import CheckpointError, ConfigError
from model.numerics.vector_modules import Dense
from model.sources.files import report_pickles, weight_files
from model.sources.sentence import read_sentence, tower_vectors
from model.sources.task_files import (
    LogitScore,
    is_late_interaction,
    read_late_files,
    read_logit_score,
    task_kind,
)
from tests.model.checkpoints import edit_json
from tests.model.refusals import refused
from tests.model.sentences import write_modules

SETTINGS = "config_sentence_transformers.json"
NAME = "token_embeddings"
DENSE = {"in_features": 12, "out_features": 6, "module_input_name": NAME}
EXPANSION = {"strategy": "min", "length": 8, "attend": True, "token": None}


def native(folder: Path) -> Path:
    """Write sentence-transformers' format, without weights."""
    configs: dict[str, dict[str, Any]] = {
        "Dense": DENSE,
        "MultiVectorMask": {"skiplist_tasks": "query"},
        "Normalize": {"module_input_name": NAME},
    }
    write_modules(folder, "Transformer", *configs, **configs)
    edit_json(folder / SETTINGS, model_type="MultiVectorEncoder", similarity_fn_name="meanmaxsim")
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
    sizes = {"in_features": 12, "out_features": 6}
    write_modules(folder, "Transformer", "pylate.models.Dense.Dense", Dense=sizes)
    edit_json(folder / SETTINGS, query_prefix="[Q] ", document_prefix="[D] ")
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
    assert (files.query_length, files.document_length, files.similarity_fn_name) == (
        9,
        30,
        "meanmaxsim",
    )
    assert files.expansion is not None
    assert files.expansion.model_dump() == EXPANSION
    assert (files.skipped, files.skipped_in, files.markers) == ((), ("query",), ())
    sentence = read_sentence(tmp_path, 40, 12)
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
            "similarity_fn_name: Input should be 'maxsim'",
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
        (stanford, "artifact.metadata", {"similarity": "l2"}, "'l2' is not supported; 'cosine' is"),
        (stanford, "artifact.metadata", {"dim": "many"}, "out_features"),
    ],
)
def test_refusals(
    tmp_path: Path, write: Callable[[Path], Path], file: str, changes: Any, part: str
) -> None:
    edit_json(write(tmp_path) / file, **changes)
    assert part in refused(ConfigError, tmp_path, read_late_files, tmp_path)


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
    dense = {"in_features": 12, "out_features": 12}
    kinds = ("Transformer", "Pooling", "Dense")
    write_modules(tmp_path, *kinds, Pooling={"pooling_mode_mean_tokens": True}, Dense=dense)
    assert not is_late_interaction(tmp_path)
    edit_json(tmp_path / SETTINGS, model_type="SentenceTransformer", similarity_fn_name="maxsim")
    assert not is_late_interaction(tmp_path)
    with pytest.raises(ConfigError, match="'maxsim' needs a vector per token"):
        read_sentence(tmp_path, 40, 12)


WORDS = {"true_token_id": 5, "false_token_id": 3}
MESSAGES = {"text": {}, "message": {"format": "structured"}}


def write(
    folder: Path, config: dict[str, Any], kinds: tuple[str, ...] = ("Transformer", "LogitScore")
) -> Path:
    """Write the descriptions of a reranker."""
    package = "sentence_transformers.cross_encoder.modules"
    write_modules(folder, *(f"{package}.{kind}" for kind in kinds), LogitScore=config)
    return folder


def test_its_words_and_its_template(tmp_path: Path) -> None:
    folder = write(tmp_path, WORDS | {"module_input_name": "causal_logits"})
    assert task_kind(folder) == "sequence_classification"
    assert read_logit_score(folder) == LogitScore(**WORDS)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": "of the settings"}))
    assert read_logit_score(folder) == LogitScore(**WORDS, chat_template="of the settings")
    (folder / "chat_template.jinja").write_text("of a file")
    assert read_logit_score(folder) == LogitScore(**WORDS, chat_template="of a file")
    settings = folder / "sentence_bert_config.json"
    settings.write_text(json.dumps({"modality_config": {"text": {}}}))
    assert read_logit_score(folder) == LogitScore(**WORDS)
    settings.write_text(json.dumps({"modality_config": MESSAGES}))
    found = read_logit_score(folder)
    assert found is not None
    assert (found.chat_template, found.message_format) == ("of a file", "structured")


def test_another_order_of_modules_is_none(tmp_path: Path) -> None:
    folder = write(tmp_path, WORDS, ("Transformer", "LogitScore", "Dense"))
    assert read_logit_score(folder) is None
    assert task_kind(folder) is None


@pytest.mark.parametrize(
    ("config", "files", "says"),
    [
        ({}, {}, "true_token_id: Input should be a valid integer"),
        (WORDS | {"true_token_id": -1}, {}, "true_token_id: Input should be greater than or equal"),
        (WORDS | {"scale": 2}, {}, "scale is not supported"),
        (WORDS | {"module_input_name": "logits"}, {}, "'logits' is not supported; 'causal_logits'"),
        (
            WORDS,
            {"sentence_bert_config": {"modality_config": MESSAGES}},
            r"names messages, and .* holds no chat_template\.jinja",
        ),
        (
            WORDS,
            {"tokenizer_config": {"chat_template": [{"name": "default", "template": "a"}]}},
            "several chat templates are not supported",
        ),
        (
            WORDS,
            {
                "sentence_bert_config": {"modality_config": {"message": {"format": "auto"}}},
                "tokenizer_config": {"chat_template": "a"},
            },
            "message_format: Input should be 'flat' or 'structured'",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], says: str
) -> None:
    folder = write(tmp_path, config)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=says):
        read_logit_score(folder)


SINGLE, PICKLE = "model.safetensors", "pytorch_model.bin"


def write_weights(folder: Path, *names: str, **indices: list[str]) -> Path:
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
    write_weights(tmp_path, PICKLE, "p.bin", pickled=["p.bin"])
    assert names_of(tmp_path) == [PICKLE]
    (tmp_path / PICKLE).unlink()
    assert names_of(tmp_path) == ["p.bin"]
    write_weights(
        tmp_path, "b.safetensors", "a.safetensors", safe=["b.safetensors", "a.safetensors"]
    )
    assert names_of(tmp_path) == ["a.safetensors", "b.safetensors"]
    write_weights(tmp_path, SINGLE)
    assert names_of(tmp_path) == [SINGLE]


def test_pickles_that_are_not_allowed(tmp_path: Path) -> None:
    write_weights(tmp_path, PICKLE)
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors$"):
        weight_files(tmp_path, pickles=False)


def test_an_index_names_files_of_its_own_format(tmp_path: Path) -> None:
    write_weights(tmp_path, "p.bin", safe=["p.bin"])
    with pytest.raises(CheckpointError, match=r"names p\.bin, which is of another format"):
        weight_files(tmp_path)


def test_the_pickles_of_an_export_are_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    report_pickles(write_weights(tmp_path, SINGLE, PICKLE), lines.append)
    assert lines == []
    (tmp_path / SINGLE).unlink()
    kinds = ("Transformer", "Pooling", "Dense", "Normalize", "Dense")
    write_modules(tmp_path, *kinds)
    write_weights(tmp_path, f"2_Dense/{PICKLE}", f"4_Dense/{PICKLE}", "4_Dense/model.safetensors")
    report_pickles(tmp_path, lines.append)
    assert lines == [
        "reading tensors, and nothing else, from pickled weights: "
        "2_Dense/pytorch_model.bin, pytorch_model.bin"
    ]


CLIP = {"model_type": "clip_text_model", "hidden_size": 12, "projection_dim": 5}


def read(folder: Path, **config: Any) -> SentenceConfig:
    (folder / "config.json").write_text(json.dumps(CLIP | config))
    return read_sentence(folder, 20, 12)


def test_a_tower_without_a_projection_gives_the_state_of_its_end_token(tmp_path: Path) -> None:
    sentence = read(tmp_path, architectures=["CLIPTextModel"])
    assert (sentence.pooling, sentence.modules) == ("last", ())


def test_modules_of_sentence_transformers_follow_the_projection(tmp_path: Path) -> None:
    dense = {"in_features": 5, "out_features": 3}
    write_modules(tmp_path, "CLIPModel", "Dense", "Normalize", Dense=dense)
    sentence = read(tmp_path, architectures=["CLIPTextModelWithProjection"])
    assert [module.kind for module in sentence.modules] == ["Dense", "Dense"]
    assert (sentence.vector_size(12), sentence.normalize) == (3, True)


def test_a_pooling_of_sentence_transformers_replaces_the_towers(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling", Pooling={"pooling_mode": "mean"})
    assert read(tmp_path).pooling == "mean"


def test_other_modules_are_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, "CLIPModel", "LSTM")
    with pytest.raises(ConfigError, match="CLIPModel → LSTM are not supported for CLIP and SigLIP"):
        read(tmp_path)
    write_modules(tmp_path, "Transformer")
    edit_json(tmp_path / "sentence_bert_config.json", module_output_name="token_embeddings")
    with pytest.raises(ConfigError, match="'token_embeddings' is not supported"):
        read(tmp_path)


def test_arguments_of_the_processor_limit_texts(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer")
    path = tmp_path / "sentence_bert_config.json"
    own = {"module_output_name": "sentence_embedding"}
    edit_json(path, **own, processing_kwargs={"text": {"padding": "max_length", "max_length": 7}})
    assert read(tmp_path).max_length == 7
    edit_json(path, processing_kwargs={"image": {"do_resize": False}})
    with pytest.raises(ConfigError, match=r"processing_kwargs\.image is not supported"):
        read(tmp_path)
    edit_json(path, processing_kwargs={"text": {"stride": 3}})
    with pytest.raises(ConfigError, match=r"processing_kwargs\.text\.stride is not supported"):
        read(tmp_path)


def test_other_encoders_are_no_towers(tmp_path: Path) -> None:
    assert tower_vectors(tmp_path, {"model_type": "bert"}) is None
