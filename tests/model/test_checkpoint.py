from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
)

from model.checkpoint import load_checkpoint, load_weights
from model.encoder.encoder import Encoder
from model.errors import CheckpointError
from model.families.registry import FAMILIES
from model.numerics.batch import pack
from model.packing import PackedBatch
from tests.model.checkpoints import TINY, edit_json, edit_weights
from tests.model.pickles import pickle_weights
from tests.model.refusals import refused


def last_hidden_state(encoder: Encoder) -> Tensor:
    ids = np.arange(8).reshape(2, 4)
    batch = PackedBatch.of(pack([(text, text % 2) for text in ids]))
    with torch.inference_mode():
        return encoder(batch).hidden_states[-1].view(2, 4, -1)


def reference_hidden_state(folder: Path) -> Tensor:
    reference = BertModel.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, add_pooling_layer=False
    ).eval()
    ids = torch.arange(8).view(2, 4)
    with torch.inference_mode():
        return reference(ids, torch.ones_like(ids), ids % 2).last_hidden_state


def assert_loads_as_transformers_does(folder: Path) -> None:
    torch.testing.assert_close(
        last_hidden_state(load_checkpoint(folder)),
        reference_hidden_state(folder),
        atol=1e-5,
        rtol=1e-5,
    )


def test_no_parameter_is_random_before_it_is_read(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch would import its compiler for random initialisation."""
    for name in ("normal_", "uniform_"):
        monkeypatch.delattr(f"torch.nn.init._no_grad_{name}")
    load_checkpoint(tiny_checkpoint)
    with pytest.raises(NameError, match="_no_grad_normal_"):
        torch.nn.Embedding(2, 3)


@pytest.mark.parametrize(
    "architecture",
    [BertModel, BertForMaskedLM, BertForSequenceClassification, BertForQuestionAnswering],
)
def test_heads_on_top_of_the_encoder_are_left_out(tmp_path: Path, architecture: type) -> None:
    torch.manual_seed(0)
    model = architecture(BertConfig(**TINY, initializer_range=0.2))
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert any(FAMILIES["bert"].encoder_key(key) is None for key in stored)
    assert any(key.startswith("bert.") for key in stored) == (architecture is not BertModel)
    assert_loads_as_transformers_does(tmp_path)


def test_gamma_and_beta_are_the_names_of_old_layer_norms(
    make_checkpoint: Callable[..., Path],
) -> None:
    folder = make_checkpoint()
    expected = reference_hidden_state(folder)
    path = folder / "model.safetensors"
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for key, tensor in load_file(path).items()
    }
    assert sum("gamma" in key for key in old) == 5
    save_file(old, path)
    torch.testing.assert_close(
        last_hidden_state(load_checkpoint(folder)), expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("key", ["embeddings.position_ids", "embeddings.token_type_ids"])
def test_buffers_of_old_checkpoints_are_left_out(
    make_checkpoint: Callable[..., Path], key: str
) -> None:
    folder = make_checkpoint()
    edit_weights(folder, **{key: torch.arange(40)[None]})
    assert_loads_as_transformers_does(folder)


def test_shards_are_read_through_their_index(tmp_path: Path, tiny_checkpoint: Path) -> None:
    model = BertModel.from_pretrained(tiny_checkpoint)
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert not (tmp_path / "model.safetensors").exists()
    assert_loads_as_transformers_does(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_pickled_weights_are_read(
    make_checkpoint: Callable[..., Path], shards: int, zipped: bool
) -> None:
    folder = make_checkpoint()
    expected = reference_hidden_state(folder)
    pickle_weights(folder, shards=shards, zipped=zipped)
    assert not list(folder.glob("*.safetensors"))
    torch.testing.assert_close(
        last_hidden_state(load_checkpoint(folder)), expected, atol=1e-5, rtol=1e-5
    )


def test_a_pickle_of_a_whole_model_with_tied_weights_is_read(tmp_path: Path) -> None:
    """A pickle has a tied tensor under each of its names, and buffers of integers."""
    model = BertForMaskedLM(BertConfig(**TINY, initializer_range=0.2))
    model.save_pretrained(tmp_path)
    expected = reference_hidden_state(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = model.state_dict() | {"bert.embeddings.position_ids": torch.arange(40)[None]}
    assert "cls.predictions.decoder.weight" in state
    torch.save(state, tmp_path / "pytorch_model.bin")
    torch.testing.assert_close(
        last_hidden_state(load_checkpoint(tmp_path)), expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(
    tmp_path: Path, tiny_checkpoint: Path, dtype: torch.dtype
) -> None:
    BertModel.from_pretrained(tiny_checkpoint).to(dtype).save_pretrained(tmp_path)
    encoder = load_checkpoint(tmp_path)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}
    assert_loads_as_transformers_does(tmp_path)


def test_an_encoder_is_ready_for_inference(tiny_checkpoint: Path) -> None:
    encoder = load_checkpoint(tiny_checkpoint)
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert {parameter.device.type for parameter in encoder.parameters()} == {"cpu"}


def test_weights_of_an_artifact_make_the_same_encoder(
    tmp_path: Path, tiny_checkpoint: Path
) -> None:
    encoder = load_checkpoint(tiny_checkpoint)
    save_file(encoder.state_dict(), tmp_path / "weights.safetensors")
    again = load_weights(tmp_path / "weights.safetensors", encoder.config)
    assert torch.equal(last_hidden_state(again), last_hidden_state(encoder))


def refusal(folder: Path) -> str:
    return refused(CheckpointError, folder, load_checkpoint, folder)


def test_missing_unexpected_mis_shaped_and_not_finite_are_reported_together(
    make_checkpoint: Callable[..., Path],
) -> None:
    folder = make_checkpoint()
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["encoder.layer.0.attention.self.query.bias"]
    del tensors["embeddings.LayerNorm.weight"]
    tensors["encoder.layer.7.output.dense.bias"] = torch.zeros(12)
    tensors["embeddings.word_embeddings.weight"] = torch.zeros(60, 11)
    tensors["encoder.layer.1.output.dense.bias"][3] = torch.nan
    tensors["encoder.layer.1.attention.self.key.weight"][0, 0] = torch.inf
    save_file(tensors, path)
    message = refusal(folder)
    for part in (
        "2 missing: embeddings.layer_norm.weight, layers.0.attention.query.bias",
        "1 unexpected: layers.7.feed_forward.contract.bias",
        "1 mis-shaped: embeddings.word.weight (60, 11) instead of (60, 12)",
        "2 not finite: layers.1.attention.key.weight, layers.1.feed_forward.contract.bias",
    ):
        assert part in message


def test_a_long_list_is_cut_and_counted(make_checkpoint: Callable[..., Path]) -> None:
    folder = make_checkpoint()
    edit_json(folder / "config.json", num_hidden_layers=3)
    message = refusal(folder)
    assert "16 missing: layers.2." in message
    assert "and 8 more" in message


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("num_hidden_layers", "num_hidden_layers {size}, where there are 37 tensors"),
        *(
            (name, f"{name} {{size}}, where no tensor is longer than 60")
            for name in (
                "vocab_size",
                "hidden_size",
                "intermediate_size",
                "max_position_embeddings",
                "type_vocab_size",
            )
        ),
    ],
)
@pytest.mark.parametrize("size", [61, 10**6, 10**12, 10**18, 10**30])
def test_no_module_is_built_of_a_size_that_no_tensor_has(
    make_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    says: str,
    size: int,
) -> None:
    built: list[object] = []
    monkeypatch.setattr("model.checkpoint.Encoder", built.append)
    folder = make_checkpoint()
    edit_json(folder / "config.json", **{name: 3 * size, "num_attention_heads": 3})
    assert refusal(folder).endswith(f"does not fit its config: {says.format(size=3 * size)}")
    assert built == []


def test_sizes_that_no_tensor_has_are_reported_together(
    make_checkpoint: Callable[..., Path],
) -> None:
    folder = make_checkpoint()
    edit_json(folder / "config.json", vocab_size=10**9, num_hidden_layers=10**9)
    message = refusal(folder)
    assert "vocab_size 1000000000, " in message
    assert "; num_hidden_layers 1000000000, " in message


def test_the_config_decides_which_score_parameters_there_are(
    make_checkpoint: Callable[..., Path],
) -> None:
    folder = make_checkpoint(attention_score="bilinear")
    load_checkpoint(folder)
    edit_json(folder / "config.json", attention_score="additive")
    message = refusal(folder)
    assert "6 missing: layers.0.attention.score_parameters.key_weight" in message
    assert "4 unexpected: layers.0.attention.score_parameters.bias" in message


def test_a_tensor_under_two_names_is_refused(make_checkpoint: Callable[..., Path]) -> None:
    folder = make_checkpoint()
    edit_weights(folder, **{"bert.embeddings.LayerNorm.gamma": torch.zeros(12)})
    assert "embeddings.layer_norm.weight twice" in refusal(folder)


@pytest.mark.parametrize("size", [0, 5, 8, 100, -1, None])
def test_a_file_that_is_not_safetensors_is_refused(
    make_checkpoint: Callable[..., Path], size: int | None
) -> None:
    """It is cut off, or of `torch.save`, or missing."""
    folder = make_checkpoint()
    path = folder / "model.safetensors"
    if size is None:
        torch.save({"a": torch.ones(3)}, path)
    else:
        path.write_bytes(path.read_bytes()[:size])
    assert "model.safetensors is not a readable safetensors file" in refusal(folder)
    path.unlink()
    assert "holds no model.safetensors and no pytorch_model.bin" in refusal(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "sub/inside.safetensors",
        "..",
        ".",
        "",
        "absent.safetensors",
        "/outside.safetensors",
        3,
    ],
)
def test_an_index_that_leaves_the_folder_is_refused(
    make_checkpoint: Callable[..., Path], name: str | int
) -> None:
    folder = make_checkpoint()
    weights = folder / "model.safetensors"
    (folder / "sub").mkdir()
    shutil.copy(weights, folder / "sub" / "inside.safetensors")
    shutil.move(weights, folder.parent / "outside.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"embeddings.LayerNorm.weight": name}}))
    assert "model.safetensors.index.json" in refusal(folder)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": [1]}}', "\x00"]
)
def test_a_damaged_index_is_refused(make_checkpoint: Callable[..., Path], content: str) -> None:
    folder = make_checkpoint()
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json is not an index of weights" in refusal(folder)
