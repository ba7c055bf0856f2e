"""Import of foreign graphs: files, config, vectors, and errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from model.artifact.manifest import FOREIGN_FILES, Artifact, load_artifact
from model.config.encoder import UnknownEncoder
from model.errors import ArtifactError, CheckpointError, ConfigError
from model.export.foreign_import import foreign_key
from model.sources.foreign_exports import ForeignGraph, find_graph
from tests.foreign import checkpoint_of, exported_from, write_foreign
from tests.model.checkpoints import edit_json


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a foreign folder; read only."""
    return write_foreign(tmp_path_factory.mktemp("foreign") / "tiny")


@pytest.fixture(scope="module")
def tiny_foreign(tiny: Path) -> Artifact:
    """Return its artifact; read only."""
    return exported_from(tiny)


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """Return the folder, to be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "tiny"))


def graph_of(folder: Path) -> ForeignGraph:
    graph = find_graph(folder)
    assert graph is not None
    return graph


def test_an_artifact_of_a_foreign_graph(tiny: Path, tiny_foreign: Artifact) -> None:
    manifest = tiny_foreign.manifest
    found = {path.name for path in tiny_foreign.folder.iterdir()}
    assert found == {*FOREIGN_FILES, "manifest.json"} == {*manifest.files, "manifest.json"}
    assert load_artifact(tiny_foreign.folder) == tiny_foreign
    assert (manifest.runtime, manifest.foreign, manifest.precision) == ("foreign", True, "fp32")
    assert manifest.config.num_hidden_layers == 2
    assert (manifest.sentence.pooling, manifest.sentence.normalize) == ("cls", True)
    assert (manifest.verification.reference, manifest.verification.passed) == ("itself", True)
    assert manifest.verification.inputs == 4
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_of(tiny))
    ours = Tokenizer.from_file(str(tiny_foreign.path("tokenizer.json")))
    assert ours.encode("the cat.").ids == tokenizer("the cat.").input_ids


def test_the_same_graph_gives_the_same_files(folder: Path, tiny_foreign: Artifact) -> None:
    assert exported_from(folder).sha256 == tiny_foreign.sha256


def test_a_file_more_or_less_is_refused(tiny_foreign: Artifact, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_foreign.folder, tmp_path / "copy"))
    content = json.loads((copy / "manifest.json").read_text())
    content["files"]["golden.safetensors"] = content["files"]["tokenizer.json"]
    (copy / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=r"does not list exactly encoder\.onnx, encoder\.onnx"):
        load_artifact(copy)
    shutil.copy(tiny_foreign.path("manifest.json"), copy)
    (copy / "encoder.onnx.data").unlink()
    with pytest.raises(ArtifactError, match=r"encoder\.onnx\.data is missing"):
        load_artifact(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: edit_json(folder / "config.json", max_position_embeddings=39),
        lambda folder: edit_json(folder / "tokenizer_config.json", x=1),
        lambda folder: edit_json(folder / "1_Pooling" / "config.json", x=1),
        lambda folder: (folder / "onnx" / "model.onnx").write_bytes(
            (folder / "onnx" / "model.onnx").read_bytes() + b"\x42\x00"  # an empty doc_string more
        ),
    ],
)
def test_the_key_changes_with_the_files(folder: Path, change: Callable[[Path], object]) -> None:
    before = foreign_key(graph_of(folder), "a")
    assert before == foreign_key(graph_of(folder), "a") != foreign_key(graph_of(folder), "b")
    change(folder)
    assert foreign_key(graph_of(folder), "a") != before


def test_a_family_that_nobody_knows(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="somebodys", max_position_embeddings=99)
    edit_json(folder / "sentence_bert_config.json", max_seq_length=38)
    manifest = exported_from(folder).manifest
    config = load_artifact(folder.with_name("tiny-artifact")).manifest.config
    assert config == manifest.config
    assert isinstance(config, UnknownEncoder)
    assert (config.model_type, config.hidden_size, config.type_vocab_size) == ("somebodys", 12, 2)
    assert (config.num_hidden_layers, config.num_attention_heads) == (0, 0)
    assert config.max_position_embeddings == 38  # and not what the graph cannot compute


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"hidden_size": 15}, r"gives 12 features a token \(last_hidden_state\), where .* says 15"),
        ({"model_type": "x", "vocab_size": None}, "does not say vocab_size"),
        ({"model_type": "x", "vocab_size": -1}, "vocab_size: Input should be greater than 0"),
        ({"hidden_act": "x"}, "hidden_act"),
    ],
)
def test_configs_that_do_not_fit(folder: Path, changes: dict[str, object], part: str) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(ConfigError, match=part) as failed:
        exported_from(folder)
    assert "\n" not in str(failed.value)
    assert not folder.with_name("tiny-artifact").exists()


def test_a_text_that_the_graph_cannot_compute(folder: Path) -> None:
    edit_json(folder / "config.json", max_position_embeddings=50)
    with pytest.raises(CheckpointError, match="cannot compute a batch of texts of up to 47 tok"):
        exported_from(folder)


def test_tensors_in_another_file(folder: Path, tiny_foreign: Artifact) -> None:
    path = folder / "onnx" / "model.onnx"
    model = onnx.load(path)
    onnx.save_model(
        model, path, save_as_external_data=True, location="model.onnx_data", size_threshold=0
    )
    key = foreign_key(graph_of(folder), "a")
    artifact = exported_from(folder)
    data = [tiny_foreign.path("encoder.onnx.data"), artifact.path("encoder.onnx.data")]
    assert data[0].read_bytes() == data[1].read_bytes()
    content = bytearray((path.parent / "model.onnx_data").read_bytes())
    content[40] ^= 1
    (path.parent / "model.onnx_data").write_bytes(content)
    assert foreign_key(graph_of(folder), "a") != key
