"""Static embeddings: their table, the exported artifact, and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from model.artifact.manifest import load_artifact
from model.errors import CheckpointError, ModelError
from model.export.static_embedding import export_static, read_table
from model.numerics.batch import pack
from model.runtimes.registry import load_runtime
from model.sources.files import cache_key
from model.sources.recognition import check_recognised
from tests.model.static_checkpoints import FEATURES, write_model2vec, write_static

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_the_rows_of_model2vec_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    folder = write_model2vec(tmp_path / "a")
    expected = StaticEmbedding.load(str(folder)).embedding.weight.detach().numpy()
    np.testing.assert_allclose(read_table(folder / "model.safetensors"), expected, rtol=1e-6)


@pytest.mark.parametrize("place", ["", "0_StaticEmbedding"])
def test_an_artifact_looks_up_rows_and_describes_them(tmp_path: Path, place: str) -> None:
    folder = write_static(tmp_path / "a", prompts={"q": "the "})
    weights = folder / place / "model.safetensors"
    weights.parent.mkdir(exist_ok=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).rename(weights.parent / name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = place
    (folder / "modules.json").write_text(json.dumps(modules))
    check_recognised(folder)
    exported = export_static(folder, tmp_path / "out", "a/model")
    artifact = load_artifact(tmp_path / "out")
    assert artifact == exported
    assert (artifact.passed, artifact.manifest.verification.reference) == (True, "table")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {*artifact.manifest.files, "manifest.json"} == names
    sentence = artifact.manifest.sentence
    assert (sentence.pooling, sentence.normalize, sentence.vector_size(FEATURES)) == (
        "mean",
        True,
        4,
    )
    assert (sentence.prompts["q"], sentence.max_length) == ("the ", 8192)
    table = load_file(weights)["embedding.weight"]
    batch = pack([(np.array(ids), np.zeros(len(ids), np.int64)) for ids in ([5, 57, 5], [7])])
    runtime = load_runtime(artifact)
    (states,) = runtime.hidden_states(batch, [0])
    assert np.array_equal(states, table[[5, 57, 5, 7]])
    for layers, mask in (([1], None), ([0], np.ones((2, 1, 1), np.float32))):
        with pytest.raises(ModelError, match="a static embedding has no layers and heads"):
            runtime.hidden_states(batch, layers, mask)
    key = cache_key(folder, "a/model", "fp32")
    save_file({"embedding.weight": 2 * table}, weights)
    assert cache_key(folder, "a/model", "fp32") != key


def test_a_table_that_was_not_written_whole_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(tensors: dict[str, Any], path: Path) -> None:
        save_file({name: 2 * tensor for name, tensor in tensors.items()}, path)

    monkeypatch.setattr("model.export.static_embedding.save_file", save)
    exported = export_static(write_model2vec(tmp_path / "a"), tmp_path / "out", "a")
    assert exported.manifest.verification.failed == "the table differs from the checkpoint's"
    assert not exported.passed


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
        export_static(folder, tmp_path / "out", "a")
