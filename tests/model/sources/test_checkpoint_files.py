"""Selection of the files that make up a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.sources import checkpoint_files as files
from model.tokenization.files import READ_AS_THEY_ARE

BERT = ["config.json", "model.safetensors", "tokenizer.json"]


def write(folder: Path, names: list[str], *modules: tuple[str, Any]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    if modules:
        entries = [
            {"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules
        ]
        (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def write_index(folder: Path, *shards: str) -> None:
    content = {"weight_map": {str(i): shard for i, shard in enumerate(shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def test_a_whole_checkpoint_lacks_nothing(tmp_path: Path) -> None:
    assert files.lacking(write(tmp_path, BERT)) == []


@pytest.mark.parametrize("name", BERT)
def test_what_a_checkpoint_cannot_do_without(tmp_path: Path, name: str) -> None:
    write(tmp_path, BERT)
    (tmp_path / name).unlink()
    assert files.lacking(tmp_path) == [name]


@pytest.mark.parametrize("name", files.TOKENIZERS)
def test_any_tokenizer_will_do(tmp_path: Path, name: str) -> None:
    assert files.lacking(write(tmp_path, ["config.json", "model.safetensors", name])) == []


def test_pictures_need_an_image_processor_in_place_of_a_tokenizer(tmp_path: Path) -> None:
    write(tmp_path, ["model.safetensors"])
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    assert files.lacking(tmp_path) == ["preprocessor_config.json"]
    for name in ("preprocessor_config.json", "processor_config.json"):
        assert files.lacking(write(tmp_path, [name])) == []
        (tmp_path / name).unlink()


def test_every_shard_is_needed(tmp_path: Path) -> None:
    write(tmp_path, ["config.json", "tokenizer.json", "a.safetensors"])
    write_index(tmp_path, "a.safetensors", "b.safetensors", "a.safetensors")
    assert files.lacking(tmp_path) == ["b.safetensors"]
    assert files.weights(["a.safetensors", "b.safetensors", "c.safetensors"], tmp_path) == [
        "a.safetensors",
        "b.safetensors",
    ]


def test_one_file_goes_before_shards(tmp_path: Path) -> None:
    write_index(tmp_path, "a.safetensors")
    names = ["a.safetensors", "model.safetensors"]
    assert files.weights(names, tmp_path) == ["model.safetensors"]


def test_modules_of_folders_of_their_own(tmp_path: Path) -> None:
    names = [f"0_Transformer/{name}" for name in BERT]
    modules = [("Transformer", "0_Transformer/"), ("Pooling", "1_Pooling"), ("Normalize", "2_N")]
    write(tmp_path, names, *modules, ("Dense", "3_Dense"))
    assert files.encoder_place(tmp_path) == "0_Transformer/"
    assert files.lacking(tmp_path) == [
        "1_Pooling/config.json",
        "3_Dense/config.json",
        "3_Dense/model.safetensors",
    ]
    listing = [*names, "3_Dense/model.safetensors", "3_Dense/pytorch_model.bin"]
    assert files.weights(listing, tmp_path) == [
        "0_Transformer/model.safetensors",
        "3_Dense/model.safetensors",
    ]


def test_pickles_are_taken_where_there_are_no_safetensors(tmp_path: Path) -> None:
    write(tmp_path, ["config.json", "tokenizer.json"], ("Transformer", ""), ("Dense", "1_D"))
    (tmp_path / "1_D").mkdir()
    (tmp_path / "1_D" / "config.json").touch()
    listing = ["pytorch_model.bin", "1_D/pytorch_model.bin", "1_D/model.safetensors"]
    assert files.weights(listing, tmp_path) == ["1_D/model.safetensors", "pytorch_model.bin"]
    assert files.weights(listing, tmp_path, pickles=False) == ["1_D/model.safetensors"]
    assert files.weights([*listing, "model.safetensors"], tmp_path)[1] == "model.safetensors"
    for name in listing[:2]:
        (tmp_path / name).touch()
    assert files.lacking(tmp_path) == []
    assert files.lacking(tmp_path, pickles=False) == ["model.safetensors", "1_D/model.safetensors"]
    (tmp_path / "pytorch_model.bin").unlink()
    index = {"weight_map": {"a": "a.bin", "b": "b.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert files.weights(["a.bin", "b.bin", "c.bin"], tmp_path) == ["a.bin", "b.bin"]
    assert files.lacking(tmp_path) == ["a.bin", "b.bin"]


@pytest.mark.parametrize("path", ["", ".", "..", "../x", "a/../../x", "/etc", None, 7])
def test_a_module_lies_inside_the_checkpoint(path: Any) -> None:
    assert files.place({"path": path}) in ("", "7/")


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\xff", '{"weight_map": 7}'])
def test_files_that_are_damaged_name_nothing(tmp_path: Path, content: str) -> None:
    for name in ("modules.json", "model.safetensors.index.json"):
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    assert files.modules(tmp_path) == []
    assert files.shards(tmp_path / "model.safetensors.index.json") == []
    assert files.encoder_place(tmp_path) == ""


def test_all_of_a_tokenizer_is_fetched() -> None:
    pieces = {"source.spm", "target.spm", "sentencepiece.bpe.model", "target_vocab.json"}
    assert READ_AS_THEY_ARE | pieces | {"tokenizer.json"} <= files.DESCRIPTIONS


def test_descriptions_are_of_one_folder() -> None:
    names = ["config.json", "a/config.json", "a/b/config.json", "README.md", "a/vocab.txt"]
    assert files.descriptions(names) == ["config.json"]
    assert files.descriptions(names, "a/") == ["a/config.json", "a/vocab.txt"]


def test_an_adapter_of_each_task(tmp_path: Path) -> None:
    config = {"model_type": "jina_embeddings_v3", "lora_adaptations": ["text-matching", "../a"]}
    write(tmp_path, BERT)
    (tmp_path / "config.json").write_text(json.dumps(config))
    adapters = [
        f"{folder}/adapter_{name}"
        for folder in ("text_matching", "___a")
        for name in ("config.json", "model.safetensors")
    ]
    assert files.lacking(tmp_path) == adapters
    names = [*BERT, *adapters, "other/adapter_model.safetensors"]
    assert {*files.weights(names, tmp_path)} == {"model.safetensors", adapters[1], adapters[3]}
