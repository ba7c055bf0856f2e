"""Static embeddings: their table, the exported folder, and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from model.artifact.modules import is_static
from model.artifact.sentence import SentenceConfig
from model.errors import CheckpointError
from model.export.static_embedding import read_table, static_export
from model.sources.recognition import check_recognised
from tests.model.static_checkpoints import FEATURES, write_model2vec, write_static

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_the_rows_of_model2vec_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    folder = write_model2vec(tmp_path / "a")
    expected = StaticEmbedding.load(str(folder)).embedding.weight.detach().numpy()
    np.testing.assert_allclose(read_table(folder / "model.safetensors"), expected, rtol=1e-6)


@pytest.mark.parametrize("place", ["", "0_StaticEmbedding"])
def test_the_graph_looks_up_rows_and_its_files_describe_it(tmp_path: Path, place: str) -> None:
    folder = write_static(tmp_path / "a", prompts={"q": "the "})
    weights = folder / place / "model.safetensors"
    weights.parent.mkdir(exist_ok=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).rename(weights.parent / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = place
    (folder / "modules.json").write_text(json.dumps(modules))
    check_recognised(folder)
    found = static_export(folder, tmp_path / "static")
    assert found == static_export(folder, tmp_path / "static")
    assert not is_static(found)
    sentence = SentenceConfig.from_checkpoint(found, 8192, FEATURES)
    assert (sentence.pooling, sentence.normalize, sentence.vector_size(FEATURES)) == (
        "mean",
        True,
        4,
    )
    assert sentence.prompts["q"] == "the "
    session = onnxruntime.InferenceSession(found / "model.onnx")
    ids = np.array([[5, 57, 5]])
    (states,) = session.run(None, {"input_ids": ids, "attention_mask": ids * 0})
    table = load_file(weights)["embedding.weight"]
    assert np.array_equal(states, table[ids])
    save_file({"embedding.weight": 2 * table}, weights)
    assert static_export(folder, tmp_path / "static") != found


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"other": TABLE}, "holds no table of vectors in float16, float32 or float64"),
        ({"embeddings": TABLE[0]}, "holds no table of vectors"),
        ({"embeddings": TABLE.astype(np.int8)}, "holds no table of vectors"),
        ({"embeddings": TABLE, "mapping": np.array([0, 4])}, "names rows that embeddings"),
        ({"embeddings": TABLE, "mapping": np.array([0, -1])}, "names rows that embeddings"),
        ({"embeddings": TABLE, "weights": TABLE[0]}, r"weights \(3,\) is not one factor a token"),
        ({"embedding.weight": np.full((2, 2), np.inf)}, "is not finite"),
    ],
)
def test_what_is_not_a_table_is_refused(tmp_path: Path, tensors: Any, says: str) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=says):
        read_table(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_files_that_are_missing_are_named(tmp_path: Path, name: str) -> None:
    folder = write_model2vec(tmp_path / "a")
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"StaticEmbedding has no {name}"):
        check_recognised(folder)
    shutil.rmtree(folder)
    folder = write_model2vec(tmp_path / "a")
    (folder / "model.safetensors").write_bytes(b"a")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        static_export(folder, tmp_path / "static")
