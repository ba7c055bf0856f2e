"""Files and kinds of sentence-transformers' folders, written by that library where it can."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import CrossEncoder, SparseEncoder

from model.errors import ConfigError
from model.numerics.vector_modules import Dense, LayerNorm, Normalize
from model.sources.files import ModuleEntry
from model.sources.sentence import (
    check_architecture,
    check_model_type,
    check_modules,
    read_sentence,
)
from model.sources.sentence_files import (
    read_model,
    read_pooling,
    read_transformer,
    read_vector_module,
)
from model.sources.task_files import task_kind
from tests.model.checkpoints import edit_json
from tests.model.refusals import refused

SETTINGS = "config_sentence_transformers.json"
TRANSFORMER = "sentence_bert_config.json"


def write(folder: Path, name: str, **content: Any) -> Path:
    (folder / name).write_text(json.dumps(content))
    return folder


def refusal(read: Callable[..., Any], *arguments: Any) -> str:
    message = refused(ConfigError, "", read, *arguments)
    assert "http" not in message
    return message


def module(folder: Path, kind: str, **content: Any) -> ModuleEntry:
    write(folder, "config.json", **content)
    return ModuleEntry(kind, folder)


def test_what_says_nothing_of_a_vector_is_left_alone(tmp_path: Path) -> None:
    says = {"__version__": {"torch": "2"}, "requirements": ["x>1"], "later": None, "more": {}}
    assert read_model(write(tmp_path, SETTINGS, **says) / SETTINGS)["prompts"] == {}


@pytest.mark.parametrize("name", ["query", "document"])
def test_two_prompts_are_always_there(tmp_path: Path, name: str) -> None:
    write(tmp_path, SETTINGS, default_prompt_name=name)
    assert read_model(tmp_path / SETTINGS)["default_prompt_name"] is None


def test_the_transformers_file_may_have_an_older_name(tmp_path: Path) -> None:
    assert read_transformer(tmp_path) == ([], False)
    write(tmp_path, "sentence_xlnet_config.json", max_seq_length=7)
    assert read_transformer(tmp_path) == ([7], False)
    write(tmp_path, "sentence_roberta_config.json", max_seq_length=9, do_lower_case=True)
    assert read_transformer(tmp_path) == ([9], True)


def test_arguments_that_change_no_vector_are_left_alone(tmp_path: Path) -> None:
    write(
        tmp_path,
        TRANSFORMER,
        model_args={"torch_dtype": "float16", "add_pooling_layer": False},
        tokenizer_args={"model_max_length": 5, "padding_side": "left", "other": None},
        config_kwargs=None,
        unpad_inputs=True,
        query_length=None,
        max_seq_length=8,
        transformer_task="feature-extraction",
        module_output_name="token_embeddings",
        modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    )
    assert sorted(read_transformer(tmp_path)[0]) == [5, 8]


SIZES = {"in_features": 4, "out_features": 3}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "settings": [
        ({"query_prefix": "[Q] ", "document_length": 180}, "document_length, query_prefix is not"),
        ({"default_prompt_name": "passage"}, "default_prompt_name 'passage' is not one of its"),
        ({"default_prompt_name": ["a"]}, "default_prompt_name ['a'] is not one of its"),
        ({"default_prompt_name": ""}, "default_prompt_name '' is not one of its"),
        ({"prompts": [1]}, "prompts is not a JSON object"),
    ],
    "Transformer": [
        ({"transformer_task": "fill-mask"}, "transformer_task 'fill-mask' is not supported"),
        ({"module_output_name": "scores"}, "module_output_name 'scores' is not supported"),
        ({"modality_config": {"image": {}}}, "modality_config {'image': {}} is not supported"),
        ({"query_expansion": {"length": 32}}, "query_expansion is not supported"),
        ({"query_length": 32}, "query_length is not supported"),
        ({"processing_kwargs": {"text": {"max_length": 9}}}, "processing_kwargs is not supported"),
        ({"tokenizer_name_or_path": "elsewhere"}, "tokenizer_name_or_path is not supported"),
        ({"model_args": {"rotary": 2}}, "model_args.rotary is not supported"),
        ({"config_args": {"model_max_length": 9}}, "config_args.model_max_length is not"),
        ({"model_kwargs": [1]}, "model_kwargs is not a JSON object"),
    ],
    "Pooling": [
        ({"pooling_mode": "median"}, "pooling median is not supported; cls, max, mean, "),
        ({"pooling_mode": ["mean", "last"]}, "pooling last is not supported"),
        ({"pooling_mode": []}, "pooling [] is not supported"),
        ({"pooling_mode": 3}, "pooling 3 is not supported"),
        ({"pooling_mode_median": True}, "pooling_mode_median is not supported"),
    ],
    "Dense": [
        ({"activation_function": "torch.nn.modules.activation.PReLU"}, "PReLU' is not supported; "),
        ({"activation_function": "elsewhere.Tanh"}, "'elsewhere.Tanh' is not supported"),
        ({"activation_function": "torch.nnn.Tanh"}, "'torch.nnn.Tanh' is not supported"),
        ({"activation_function": None}, "activation_function None is not supported"),
        ({"module_input_name": "token_embeddings"}, "'token_embeddings' is not supported"),
        ({"module_output_name": "other"}, "module_output_name 'other' is not supported"),
        ({"scale": 2}, "scale is not supported"),
        ({"in_features": 0}, "in_features: "),
        ({"out_features": "3"}, "out_features: "),
        ({"use_residual": 1}, "residual: "),
    ],
    "Normalize": [
        ({"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings'")
    ],
}


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [(kind, *case) for kind, cases in REFUSED.items() for case in cases],
    ids=str,
)
def test_what_would_change_a_vector_is_refused(
    tmp_path: Path, kind: str, content: dict[str, Any], reason: str
) -> None:
    if kind == "settings":
        found = refusal(read_model, write(tmp_path, SETTINGS, **content) / SETTINGS)
    elif kind == "Transformer":
        found = refusal(read_transformer, write(tmp_path, TRANSFORMER, **content))
    else:
        read = read_pooling if kind == "Pooling" else read_vector_module
        sizes = SIZES if kind == "Dense" else {}
        found = refusal(read, module(tmp_path, kind, **sizes | content))
    assert reason in found


@pytest.mark.parametrize("kind", ["Dense", "LayerNorm", "Pooling"])
def test_a_module_without_its_config_is_refused(tmp_path: Path, kind: str) -> None:
    read = read_pooling if kind == "Pooling" else read_vector_module
    message = refusal(read, ModuleEntry(kind, tmp_path / "1_Here"))
    assert message == f"{tmp_path / 'modules.json'} names 1_Here, which holds no config.json"


def test_modules_have_the_librarys_defaults(tmp_path: Path) -> None:
    dense = Dense(in_features=4, out_features=3, bias=True, activation="Tanh")
    assert read_vector_module(module(tmp_path, "Dense", **SIZES)) == dense
    assert read_vector_module(module(tmp_path, "LayerNorm", dimension=4)) == LayerNorm(dimension=4)
    assert read_vector_module(ModuleEntry("Normalize", tmp_path / "absent")) == Normalize()
    assert read_vector_module(ModuleEntry("Dropout", tmp_path / "absent")) is None


HERE = Path("a/folder")


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
    assert read_sentence(tmp_path, 40, 12).max_length == 40
    (tmp_path / "modules.json").unlink(missing_ok=True)  # as versions up to 5 left it
    assert task_kind(tmp_path) == "sequence_classification"
    assert read_sentence(tmp_path, 40, 12).max_length == 40


def test_a_splade_of_the_library_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    SparseEncoder(str(tiny_checkpoint), device="cpu").save(str(tmp_path))
    assert "'SparseEncoder'" in refusal(read_sentence, tmp_path, 40, 12)
    edit_json(tmp_path / "config_sentence_transformers.json", model_type=None)
    assert "sparse vectors" in refusal(read_sentence, tmp_path, 40, 12)
