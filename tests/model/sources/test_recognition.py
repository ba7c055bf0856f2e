"""Messages about folders that are not supported checkpoints."""

from __future__ import annotations

import codecs
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    BlipConfig,
    GPT2Config,
    LongT5Config,
    PegasusConfig,
    ResNetConfig,
    Siglip2Config,
    WhisperConfig,
)

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError, ConfigError, ModelError
from model.families.registry import FAMILIES
from model.sources.files import lacking
from model.sources.recognition import check_described, check_recognised
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import edit_json
from tests.model.pickles import pickle_weights
from tests.model.refusals import refused
from tests.model.sentences import write_modules

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 90868376\n"
FOREIGN = {
    LongT5Config: "is an encoder–decoder of a kind that is not served: its model_type is 'longt5'",
    PegasusConfig: "is an encoder–decoder of a kind that is not served: its model_type is "
    "'pegasus'",
    GPT2Config: "is a decoder-only language model, which is not served: its model_type is 'gpt2'",
    BlipConfig: "is a model of text and images, not a text encoder: its model_type is 'blip'",
    Siglip2Config: "is a model whose pictures differ in their numbers of patches (NaFlex), which "
    "is not served: its model_type is 'siglip2'",
    ResNetConfig: "is a vision model of a kind that is not served: its model_type is 'resnet'",
    WhisperConfig: "is an audio model, not a text encoder: its model_type is 'whisper'",
}


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Return a supported checkpoint, to be changed."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "some folder"))


def refusal(folder: Path, kind: type[ModelError], *, pickles: bool = True) -> str:
    message = refused(kind, folder, check_recognised, folder, pickles=pickles)
    assert message.startswith(str(folder))
    return message.removeprefix(str(folder)).lstrip(" :/")


def write_weights(folder: Path, **tensors: torch.Tensor) -> None:
    save_file(tensors, folder / "model.safetensors")


def in_subfolder(folder: Path) -> Path:
    """Move the encoder's files to `0_Transformer`, as in old sentence-transformers."""
    (folder / "0_Transformer").mkdir()
    for path in [*folder.glob("*.json"), folder / "model.safetensors"]:
        path.rename(folder / "0_Transformer" / path.name)
    pooling = {"pooling_mode": "mean"}
    write_modules(folder, "Transformer", "Pooling", first="0_Transformer", Pooling=pooling)
    return folder / "0_Transformer"


def read_bytes() -> int:
    """Return the number of bytes that this process has read from files so far."""
    name, _, count = Path("/proc/self/io").read_text().splitlines()[0].partition(": ")
    assert name == "rchar"
    return int(count)


def test_a_supported_checkpoint_passes(folder: Path, minilm_checkpoint: Path) -> None:
    check_recognised(folder)
    before = read_bytes()
    check_recognised(minilm_checkpoint)
    weights = (minilm_checkpoint / "model.safetensors").stat().st_size
    assert read_bytes() - before < weights / 10
    in_subfolder(folder)
    check_recognised(folder)


def test_pictures_pass_with_their_image_processor(folder: Path, picture_checkpoint: Path) -> None:
    check_recognised(picture_checkpoint)
    shutil.copytree(picture_checkpoint, folder, dirs_exist_ok=True)
    (folder / "preprocessor_config.json").unlink()
    message = "preprocessor_config.json does not exist: a picture model needs it"
    assert refusal(folder, ConfigError) == message


def test_two_towers_pass_with_both_readers(folder: Path, siglip_checkpoint: Path) -> None:
    check_recognised(siglip_checkpoint)
    shutil.rmtree(folder)
    shutil.copytree(siglip_checkpoint, folder)
    assert lacking(folder) == []
    for name in ("preprocessor_config.json", "spiece.model"):
        (folder / name).rename(folder / "away")
        assert lacking(folder) == [name if "json" in name else "tokenizer.json"]
        with pytest.raises(ModelError, match=f"{re.escape(str(folder))}.*(tokenizer|processor)"):
            check_recognised(folder)
        (folder / "away").rename(folder / name)


def test_shards_pass(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_recognised(folder)
    (folder / "a.safetensors").unlink()
    assert "names a.safetensors, which is not in the" in refusal(folder, CheckpointError)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "is not an index of weights" in refusal(folder, CheckpointError)


@pytest.mark.parametrize("config", FOREIGN)
def test_models_of_other_kinds(folder: Path, config: Any) -> None:
    """transformers itself writes the configs."""
    config().save_pretrained(folder)
    message = refusal(folder, ConfigError)
    assert message == f"{FOREIGN[config]}; supported are {', '.join(sorted(FAMILIES))}"


def test_a_decoder_that_is_not_supported(folder: Path) -> None:
    """The error comes before its weights are read."""
    edit_json(folder / "config.json", model_type="bart", decoder_start_token_id=99999)
    message = refusal(folder, ConfigError)
    assert message.startswith("config.json is not a supported decoder: Value error, ")


def test_an_unknown_model_type_is_named(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="hyena")
    message = refusal(folder, ConfigError)
    assert message == f"its model_type is 'hyena'; supported are {', '.join(sorted(FAMILIES))}"
    edit_json(folder / "config.json", model_type=["bert"])
    assert refusal(folder, ConfigError).startswith("its model_type is ['bert']; supported are")
    edit_json(in_subfolder(folder) / "config.json", model_type="mamba")
    assert "its model_type is 'mamba'" in refusal(folder, ConfigError)


def test_no_model_type(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    assert refusal(folder, ConfigError).startswith(
        "it names no model_type; supported are albert, bart, bert"
    )


@pytest.mark.parametrize("content", ["[]", "{", "7", "\xff", "[" * 100_000])
def test_a_config_that_is_no_object(folder: Path, content: str) -> None:
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    message = refusal(folder, ConfigError)
    assert re.match(r"config.json (does not hold a JSON object$|is not readable JSON: )", message)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_git_lfs_pointers(folder: Path, name: str) -> None:
    (folder / name).write_text(POINTER)
    message = refusal(folder, CheckpointError)
    assert message == f"holds Git LFS pointers in place of files ({name}): run `git lfs pull` there"


def test_git_lfs_pointers_of_a_subfolder(folder: Path) -> None:
    (in_subfolder(folder) / "model.safetensors").write_text(POINTER)
    assert "(0_Transformer/model.safetensors)" in refusal(folder, CheckpointError)


@pytest.mark.parametrize("whole", [False, True])
def test_an_adapter(folder: Path, whole: bool) -> None:
    """The adapter is alone, or beside weights that transformers would apply it to."""
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (folder / "adapter_model.safetensors").write_bytes(b"")
    if not whole:
        (folder / "config.json").unlink()
        (folder / "model.safetensors").unlink()
    message = refusal(folder, CheckpointError)
    assert message.startswith("is a LoRA or other PEFT adapter (adapter_config.json)")
    assert "merge_and_unload()" in message


@pytest.mark.parametrize(
    ("quantised", "method"),
    [({"quant_method": "gptq", "bits": 4}, "gptq"), ({"load_in_8bit": True}, "None")],
)
def test_a_config_of_quantised_weights(folder: Path, quantised: Any, method: str) -> None:
    edit_json(folder / "config.json", quantization_config=quantised)
    message = refusal(folder, CheckpointError)
    assert message.startswith(f"holds quantised weights (quantization_config: {method})")
    assert "fp32, bf16 or fp16" in message


def test_quantised_tensors_in_a_shard(folder: Path) -> None:
    write_weights(folder, **{"a.qweight": torch.ones(2, dtype=torch.int32)})
    (folder / "model.safetensors").rename(folder / "b.safetensors")
    index = {"weight_map": {"x": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "(a.qweight is I32)" in refusal(folder, CheckpointError)


def test_a_key_or_module_that_is_not_supported(folder: Path) -> None:
    """The error comes before any large download."""
    edit_json(folder / "config.json", position_embedding_type="relative_key")
    assert "position_embedding_type: Input should be 'absolute'" in refusal(folder, ConfigError)
    with pytest.raises(ConfigError, match=r"some/model: config\.json is not a supported encoder"):
        check_described(folder, ["config.json", "model.safetensors"], "some/model")
    edit_json(folder / "config.json", position_embedding_type="absolute")
    write_modules(folder, "Transformer")
    assert "the modules Transformer are not supported" in refusal(folder, ConfigError)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "holds no tokenizer: there is no tokenizer.json" in refusal(folder, CheckpointError)


def test_files_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    for path in folder.glob("*config.json"):
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes().replace(b",", b",\r\n"))
    check_recognised(folder)
    config = load_checkpoint(folder).config
    assert load_tokenizer(folder, config, lowercase=False).encode("the cat").ids


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (["weights.pt"], "pickled weights alone (weights.pt)"),
        (["tf_model.h5"], "weights of TensorFlow, Flax or Rust alone (tf_model.h5)"),
        (["flax_model.msgpack"], "weights of TensorFlow, Flax or Rust alone (flax_model.msgpack)"),
        (["model.Q8_0.gguf"], "GGUF files alone (model.Q8_0.gguf)"),
        (
            ["openvino/openvino_model.xml", "openvino/openvino_model.bin"],
            "an OpenVINO export alone (openvino/openvino_model.xml)",
        ),
        (["x.safetensors"], "x.safetensors, and neither model.safetensors nor model.safetensors."),
        (["training_args.bin", "optimizer.pt"], "no checkpoint: there is no model.safetensors"),
        ([], "no checkpoint: there is no model.safetensors"),
    ],
)
def test_weights_of_other_kinds(folder: Path, files: list[str], part: str) -> None:
    (folder / "model.safetensors").unlink()
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    assert part in refusal(folder, CheckpointError)


@pytest.mark.parametrize(
    ("files", "part"),
    [
        (["model.Q4.gguf"], "holds GGUF files alone (model.Q4.gguf)"),
        (["model.onnx"], "holds ONNX graphs alone (model.onnx), which are not served"),
        (["manifest.json", "encoder.onnx"], "is an exported artifact, not a checkpoint"),
        (["model_index.json"], "is a diffusion pipeline (model_index.json)"),
        (["model.safetensors"], "holds no checkpoint: there is no config.json"),
        ([], "holds no checkpoint: there is no config.json"),
    ],
)
def test_folders_without_a_config(tmp_path: Path, files: list[str], part: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"")
    assert part in refusal(tmp_path, ConfigError)


def test_a_graph_alone(folder: Path) -> None:
    """Locally and on a hub one line says what is needed."""
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").touch()
    says = (
        "holds ONNX graphs alone (onnx/model.onnx), which are not served: name the checkpoint that "
        "they were made from, with config.json, tokenizer.json, and model.safetensors or "
        "pytorch_model.bin"
    )
    assert refusal(folder, CheckpointError) == says
    with pytest.raises(CheckpointError) as failed:
        check_described(folder, ["config.json", "onnx/model.onnx"], "somebody/model")
    assert str(failed.value) == f"somebody/model {says}"


def test_modules_without_a_transformer(tmp_path: Path) -> None:
    write_modules(tmp_path, "WordEmbeddings")
    message = refusal(tmp_path, ConfigError)
    assert message.startswith("begins with the module WordEmbeddings (modules.json)")


@pytest.mark.parametrize("shards", [1, 2])
def test_pickled_weights_pass_unless_they_are_forbidden(folder: Path, shards: int) -> None:
    pickle_weights(folder, shards=shards)
    check_recognised(folder)
    name = "pytorch_model.bin" if shards == 1 else "pytorch_model-00001-of-00002.bin"
    message = refusal(folder, CheckpointError, pickles=False)
    assert message.startswith(f"holds pickled weights alone ({name}")
    assert "convert them to safetensors once" in message
    (folder / name).write_text(POINTER)
    assert f"Git LFS pointers in place of files ({name})" in refusal(folder, CheckpointError)
    write_weights(folder, x=torch.zeros(1))
    assert "word embeddings are missing" in refusal(folder, CheckpointError)


def test_a_pickled_module(folder: Path) -> None:
    pooling, dense = {"pooling_mode": "mean"}, {"in_features": 12, "out_features": 5}
    write_modules(folder, "Transformer", "Pooling", "Dense", Pooling=pooling, Dense=dense)
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"")
    check_recognised(folder)
    message = refusal(folder, CheckpointError, pickles=False)
    assert message.startswith("Dense has pickled weights alone (2_Dense/pytorch_model.bin)")
