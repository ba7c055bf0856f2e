"""Foreign graphs against transformers on their checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
)

from model.artifact.manifest import Artifact
from model.artifact.signature import TensorSpec
from model.errors import ModelError
from model.numerics.batch import pack
from model.numerics.pooling import TextPooling
from model.runtimes.registry import load_runtime
from tests.foreign import INPUTS, export_graph, exported_from
from tests.model.families.parity import saved
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}
DISTIL = {"vocab_size": VOCAB_SIZE, "dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20}
LOCAL = {"local_attention": 6, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
TWO = INPUTS[:2]
MODELS: dict[str, tuple[PreTrainedModel, str, tuple[str, ...], tuple[str, ...]]] = {
    "bert": (BertModel(BertConfig(**SIZES)), "BertTokenizer", INPUTS, ("last_hidden_state",)),
    "bert_two_inputs": (BertModel(BertConfig(**SIZES)), "BertTokenizer", TWO, ("y",)),
    "sentence_embedding": (
        BertModel(BertConfig(**SIZES)),
        *("BertTokenizer", INPUTS[::-1], ("sentence_embedding", "token_embeddings")),
    ),
    "roberta": (
        RobertaModel(RobertaConfig(**SIZES, pad_token_id=1)),
        *("RobertaTokenizer", TWO, ("output_0",)),
    ),
    "distilbert": (
        DistilBertModel(DistilBertConfig(**DISTIL, max_position_embeddings=40)),
        *("BertTokenizer", TWO, ("last_hidden_state",)),
    ),
    "modernbert": (
        ModernBertModel(ModernBertConfig(**SIZES, **LOCAL)),
        *("TokenizersBackend", TWO, ("last_hidden_state",)),
    ),
}
SPECS = [TensorSpec(name=n, dtype="int64", axes=("batch", "sequence")) for n in INPUTS]


def made(root: Path, name: str) -> tuple[Artifact, Any]:
    """Return an artifact of a foreign graph, and transformers' model."""
    model, tokenizer, inputs, outputs = MODELS[name]
    whole, folder = root / "whole", root / name
    write_tokenizer_folder(whole, tokenizer)
    saved(model, whole)
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    export_graph(whole, folder / "model.onnx", inputs, outputs)
    return exported_from(folder), AutoModel.from_pretrained(whole).eval()


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    artifact, reference = made(tmp_path, name)
    runtime, last = load_runtime(artifact, threads=2), artifact.manifest.config.num_hidden_layers
    assert last == reference.config.num_hidden_layers
    generator = np.random.default_rng(0)
    texts = [generator.integers(5, VOCAB_SIZE, n) for n in (3, 38, 1, 17)]
    (packed,) = runtime.hidden_states(pack([(ids, 0 * ids) for ids in texts]), [last])
    for ids, found in zip(texts, np.split(packed, np.cumsum([3, 38, 1])), strict=True):
        with torch.inference_mode():
            expected = reference(torch.from_numpy(ids)[None]).last_hidden_state[0].numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    ids = texts[0]
    (hidden,), (vector,) = runtime.encode(
        pack([(ids, 0 * ids)]), [(0, last)], [TextPooling(0, last, "cls")]
    )
    np.testing.assert_allclose(hidden, packed[:3], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(vector, hidden[0])


def test_segments_reach_a_graph_that_takes_them(tmp_path: Path) -> None:
    artifact, reference = made(tmp_path, "bert")
    ids, segments = np.arange(5, 12), np.array([0, 0, 0, 1, 1, 1, 1])
    (found,) = load_runtime(artifact).hidden_states(pack([(ids, segments)]), [3])
    given = {"input_ids": ids, "token_type_ids": segments}
    with torch.inference_mode():
        tensors = {name: torch.from_numpy(array)[None] for name, array in given.items()}
        expected = reference(**tensors).last_hidden_state[0].numpy()
        of_one = reference(tensors["input_ids"]).last_hidden_state[0].numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)

    config = artifact.manifest.config.model_copy(update={"reads_segments": False})
    manifest = artifact.manifest.model_copy(update={"config": config})
    artifact = Artifact(artifact.folder, manifest, artifact.sha256)
    (found,) = load_runtime(artifact).hidden_states(pack([(ids, segments)]), [3])
    np.testing.assert_allclose(found, of_one, rtol=0, atol=1e-4)
    assert np.abs(expected - of_one).max() > 0.01


def test_half_precision_and_four_byte_ids(tmp_path: Path) -> None:
    """A graph that only looks up its ids, in known rows."""
    rows = np.random.default_rng(0).normal(size=(VOCAB_SIZE, 4)).astype(np.float16)
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT32, ["b", "s"]) for name in INPUTS[:2]
    ]
    states = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["b", "s", 4])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["rows", "input_ids"], ["y"])],
        *("lookup", ids, [states], [onnx.numpy_helper.from_array(rows, "rows")]),
    )
    folder = write_tokenizer_folder(tmp_path / "lookup", "BertTokenizer")
    config = BertConfig(**SIZES | {"hidden_size": 4, "num_attention_heads": 2})
    config.save_pretrained(folder)
    opset = [helper.make_opsetid("", 17)]
    onnx.save_model(
        helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "model.onnx"
    )
    artifact = exported_from(folder)
    assert artifact.manifest.precision == "fp16"
    assert [spec.dtype for spec in artifact.manifest.signature["encoder"].inputs] == ["int32"] * 2
    asked = np.array([7, 9])
    (found,) = load_runtime(artifact).hidden_states(pack([(asked, 0 * asked)]), [3])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, rows[asked].astype(np.float32))


def test_a_quantised_graph(tmp_path: Path) -> None:
    """The tool of most 8-bit exports quantises it."""
    artifact, reference = made(tmp_path, "bert")
    path = tmp_path / "bert" / "model.onnx"
    quantize_dynamic(path, path, weight_type=QuantType.QInt8)
    shutil.rmtree(artifact.folder)
    artifact = exported_from(path.parent)
    assert artifact.manifest.precision == "int8"
    assert artifact.manifest.verification.passed
    ids = np.arange(5, 25)
    (found,) = load_runtime(artifact).hidden_states(pack([(ids, 0 * ids)]), [3])
    with torch.inference_mode():
        expected = reference(torch.from_numpy(ids)[None]).last_hidden_state[0].numpy()
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1)
    assert (cosines / np.linalg.norm(expected, axis=1)).min() > 0.98
    assert np.abs(found - expected).max() > 1e-4


def test_what_the_graph_does_not_have(tmp_path: Path) -> None:
    artifact, _ = made(tmp_path, "bert_two_inputs")
    runtime, batch = load_runtime(artifact), pack([([7], [0])])
    runtime.warm_up(512, 40)
    mask = np.ones((1, 3, 3), np.float32)
    with pytest.raises(ModelError, match="gives the last hidden state alone, not hidden state 2"):
        runtime.hidden_states(batch, [2, 3])
    with pytest.raises(ModelError, match="not what a head adds"):
        runtime.hidden_states(batch, [3], mask)
    assert artifact.manifest.config.type_vocab_size == 0
