"""Files of a checkpoint, errors by their headers, and numbers of weights against PyTorch's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.families.registry import read_config
from model.sources import files
from model.sources.headers import check_weights, weight_count
from model.tokenization.files import READ_AS_THEY_ARE
from tests.model.checkpoints import edit_json, edit_weights
from tests.model.refusals import refused

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


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Return a supported checkpoint, to be damaged."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "some folder"))


def check(folder: Path) -> None:
    check_weights(folder, [folder / "model.safetensors"], read_config(folder))


def refusal(folder: Path) -> str:
    message = refused(CheckpointError, folder, check, folder)
    assert message.startswith(str(folder))
    return message.removeprefix(str(folder)).lstrip(" /")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_any_float_type_pass(folder: Path, dtype: torch.dtype) -> None:
    """A buffer of old checkpoints is among them."""
    path = folder / "model.safetensors"
    cast = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    save_file(cast | {"embeddings.position_ids": torch.arange(4)}, path)
    check(folder)


def test_patches_of_another_size(picture_checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(picture_checkpoint, tmp_path / "some folder"))
    check(folder)
    key = "embeddings.patch_embeddings.projection.weight"
    edit_weights(folder, **{key: torch.ones(24, 3, 7, 7)})
    assert "patch embeddings are (24, 3, 7, 7), not (24, 3, 14, 14)" in refusal(folder)


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int8, "I8"), (torch.uint8, "U8"), (torch.float8_e4m3fn, "F8_E4M3")]
)
def test_quantised_tensors(folder: Path, dtype: torch.dtype, name: str) -> None:
    edit_weights(folder, **{"b.weight": torch.ones(2, 2).to(dtype)})
    said = f"model.safetensors holds quantised weights (b.weight is {name})"
    assert refusal(folder).startswith(said)


def test_weights_that_are_no_floats(folder: Path) -> None:
    edit_weights(folder, **{"embeddings.LayerNorm.weight": torch.ones(12, dtype=torch.int32)})
    assert "embeddings.LayerNorm.weight is I32, not a float" in refusal(folder)


def with_header(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + content


DAMAGED = [
    *(b"", b"short", b"\xff" * 99, b"\x02" + bytes(7) + b"[]", (2**62).to_bytes(8, "little")),
    with_header(b'{"a":' * 20_000),
    with_header(b'{"a": {"dtype": "F32", "data_offsets": [0, 4]}}'),
    with_header(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}'),
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_weights(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert "is not a safetensors file, or its header is damaged: fetch it" in refusal(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(folder)


def test_weights_that_are_cut_off(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-7])
    said = f"model.safetensors has {len(whole) - 7} bytes instead of {len(whole)}: fetch it again"
    assert refusal(folder) == said


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"vocab_size": 61}, "word embeddings are (60, 12), not (61, 12)"),
        ({"hidden_size": 15}, "word embeddings are (60, 12), not (60, 15)"),
        ({"num_hidden_layers": 3}, "there are tensors of 2 layers, not of 3"),
        ({"num_hidden_layers": 10**9}, "there are tensors of 2 layers, not of 1000000000"),
    ],
    ids=str,
)
def test_weights_of_another_config(folder: Path, changes: dict[str, Any], part: str) -> None:
    edit_json(folder / "config.json", **changes)
    assert refusal(folder) == f"does not fit its config: {part}"


@pytest.mark.parametrize("model_type", ["nomic_bert", "modernbert", "t5", "deberta-v2"])
def test_weights_of_another_family_are_refused_when_they_are_loaded(
    folder: Path, model_type: str
) -> None:
    """Names of tensors are common to families."""
    sizes = {"d_model": 12, "num_layers": 2, "num_heads": 3, "d_ff": 20, "d_kv": 4}
    edit_json(folder / "config.json", model_type=model_type, relative_attention=True, **sizes)
    with pytest.raises(CheckpointError, match="does not fit its config: "):
        load_checkpoint(folder)


MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertConfig, BertModel, {}),
    "bart": (BartConfig, BartModel, {}),
    "t5": (T5Config, T5Model, {}),
    "vit": (ViTConfig, ViTModel, {}),
    "qwen3": (Qwen3Config, Qwen3Model, {"num_hidden_layers": 8}),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_counted_by_the_config(tmp_path: Path, name: str) -> None:
    config, model, changes = MODELS[name]
    made = config(**changes)
    fields = made.to_dict() | {"architectures": [model.__name__]}
    (tmp_path / "config.json").write_text(json.dumps(fields, default=str))
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in model(made).parameters())
    assert weight_count(tmp_path) == pytest.approx(expected, rel=0.02)
