"""Artifacts of texts and pictures against transformers, and models that are refused."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file
from transformers import Dinov2WithRegistersModel, T5PreTrainedModel

from model.artifact.golden import read_golden
from model.artifact.manifest import TOKENIZER, Artifact, load_artifact
from model.checkpoint import load_checkpoint, load_weights
from model.config.encoder import patches_of
from model.config.precision import Precision
from model.errors import CheckpointError, ConfigError
from model.export.exporter import check_precision, export
from model.numerics.pooling import TextPooling
from model.runtimes.capabilities import capability
from model.runtimes.contract import Heads
from model.runtimes.pytorch import load_modules
from model.runtimes.registry import load_runtime
from tests.model.checkpoints import edit_json
from tests.model.families.picture_parity import packed_pictures

CHECKOUT = Path(__file__).resolve().parents[3]


def test_a_kind_that_is_not_served_is_named_before_its_weights_are_read(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    edit_json(checkpoint / "config.json", architectures=["BertForColBERT"])
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="the architecture BertForColBERT is not"):
        export(checkpoint, tmp_path / "artifact", "a name")
    assert not (tmp_path / "artifact").exists()


def test_an_artifact_says_what_it_is(tiny_artifact: Artifact, tiny_checkpoint: Path) -> None:
    manifest = load_artifact(tiny_artifact.folder).manifest
    assert (manifest.model, manifest.runtime, manifest.precision) == ("tiny", "onnx", "fp32")
    assert manifest.config == load_checkpoint(tiny_checkpoint).config
    assert manifest.verification.passed
    assert manifest.verification.inputs > 20
    assert manifest.verification.tolerances["attention"] == {
        "atol": 1e-5,
        "rtol": 0.0,
        "cosine_at_least": 0.99999,
    }
    for kind in ("hidden", "attention", "pooled"):
        assert 0 < manifest.verification.max_abs_diff_below[kind] <= 1e-5
        assert manifest.verification.min_cosine[kind] == 1


def test_the_weights_are_the_checkpoints(tiny_artifact: Artifact, tiny_checkpoint: Path) -> None:
    config = tiny_artifact.manifest.config
    stored = load_weights(tiny_artifact.path("weights.safetensors"), config).state_dict()
    checkpoint = load_file(tiny_checkpoint / "model.safetensors")
    assert torch.equal(
        stored["embeddings.word.weight"], checkpoint["embeddings.word_embeddings.weight"]
    )
    heads = load_file(tiny_artifact.path("heads.safetensors"))
    query = checkpoint["encoder.layer.1.attention.self.query.weight"]
    assert torch.equal(heads["query_weight.1"], query.view(3, 4, 12))
    assert heads["key_bias.0"].shape == (3, 4)


def test_the_encoder_graph_keeps_its_weights_beside_it(tiny_artifact: Artifact) -> None:
    graph = onnx.load(tiny_artifact.path("encoder.onnx"), load_external_data=False).graph
    external = [item for item in graph.initializer if item.data_location == 1]
    files = {e.value for item in external for e in item.external_data if e.key == "location"}
    assert files == {"weights.safetensors"}
    assert tiny_artifact.path("encoder.onnx.data").stat().st_size == 0


def test_progress_is_told(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    reported: list[str] = []
    with pytest.raises(ConfigError):
        export(tmp_path / "absent", tmp_path / "artifact", "a name", progress=reported.append)
    assert reported == ["reading a name"]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_no_file_names_the_machine(tiny_artifact: Artifact, tiny_checkpoint: Path) -> None:
    places = (CHECKOUT, Path.home(), tiny_checkpoint, tiny_artifact.folder, sys.prefix)
    traces = [str(place).encode() for place in places]
    traces += [b"site-packages", b"/tmp", b".py"]
    for name, found in content(tiny_artifact.folder).items():
        assert [trace for trace in traces if trace in found] == [], name
        assert not says(text_of(name, found), os.uname().nodename), name


def text_of(name: str, content: bytes) -> str:
    """Return an artifact file's text without tensors and vocabularies.

    They contain any two-letter host name by chance.
    """
    if name.endswith(".safetensors"):
        return content[8 : 8 + int.from_bytes(content[:8], "little")].decode()
    if name.endswith(".onnx"):
        return re.sub(r'raw_data: ".*"', "", str(onnx.load_from_string(content)))
    return "" if name in ("encoder.onnx.data", "tokenizer.json") else content.decode()


def says(text: str, word: str) -> bool:
    return re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", text, re.IGNORECASE) is not None


def test_a_short_name_is_found_where_names_stand_and_not_in_numbers(
    tiny_artifact: Artifact,
) -> None:
    files = content(tiny_artifact.folder)
    texts = {name: text_of(name, found) for name, found in files.items()}
    tensors = files["golden.safetensors"] + files["weights.safetensors"]
    hosts = {host.decode() for host in re.findall(rb"[a-z][a-z0-9]", tensors)}
    assert len(hosts) > 20  # each of them is in a tensor
    said = {host for host in hosts if any(says(text, host) for text in texts.values())}
    assert len(said) < len(hosts) / 10  # "id" is one of our own words
    graph = onnx.load_from_string(files["encoder.onnx"])
    graph.graph.node[0].doc_string = "made on VM.local"
    assert says(text_of("encoder.onnx", graph.SerializeToString()), "vm")
    assert says(text_of("manifest.json", b'{"host": "vm"}'), "vm")
    header = b'{"__metadata__": {"host": "build_vm"}}'
    file = len(header).to_bytes(8, "little") + header + b"\x00\xff"
    assert says(text_of("heads.safetensors", file), "vm")


def test_a_checkpoint_that_is_not_usable_leaves_nothing_behind(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError):
        export(checkpoint, tmp_path / "out" / "artifact", "tiny")
    assert list((tmp_path / "out").iterdir()) == []


PICTURES = torch.randn(3, 3, 28, 42, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def reference(picture_checkpoint: Path) -> Dinov2WithRegistersModel:
    model = Dinov2WithRegistersModel.from_pretrained(
        picture_checkpoint, attn_implementation="eager", dtype=torch.float32
    )
    found: Dinov2WithRegistersModel = model.eval()
    return found


def test_the_artifact_has_processing_in_place_of_a_tokenizer(picture_artifact: Artifact) -> None:
    manifest = picture_artifact.manifest
    assert manifest.images is not None
    assert manifest.images.crop == (28, 42)
    assert TOKENIZER not in manifest.file_names
    assert (manifest.sentence.pooling, manifest.sentence.max_length) == ("cls", 9)
    assert manifest.signature["encoder"].inputs[5].axes == ("tokens", 588)


def test_golden_pictures_are_transformers(
    picture_artifact: Artifact, reference: Dinov2WithRegistersModel
) -> None:
    for text in read_golden(picture_artifact):
        assert text.pixels is not None
        patches = torch.from_numpy(text.pixels[3:].T)[None]  # [1, F, patches]
        picture = torch.nn.functional.fold(patches, (28, 42), 14, stride=14)
        with torch.inference_mode():
            found = reference(picture, output_hidden_states=True, output_attentions=True)
        states = (*found.hidden_states[:-1], found.last_hidden_state)
        np.testing.assert_allclose(text.hidden, torch.cat(states).numpy(), atol=1e-4)
        np.testing.assert_allclose(text.maps, torch.cat(found.attentions).numpy(), atol=1e-5)


def test_vectors_and_maps_of_the_graphs_are_transformers(
    picture_artifact: Artifact, reference: Dinov2WithRegistersModel
) -> None:
    runtime = load_runtime(picture_artifact)
    batch = packed_pictures(patches_of(picture_artifact.manifest.config), PICTURES)
    with torch.inference_mode():
        found = reference(PICTURES, output_attentions=True)
    poolings = [TextPooling(i, 2, "cls") for i in range(3)]
    states, vectors = runtime.encode(batch, [(2, 1)], poolings)
    np.testing.assert_allclose(vectors, found.pooler_output, atol=1e-5)
    maps = capability(runtime, Heads).attention(states[0], states[0], 1, [2, 0])
    np.testing.assert_allclose(maps, found.attentions[1][2, [2, 0]], atol=1e-5)
    runtime.release_memory()
    runtime.warm_up(16, 9)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_every_precision_is_verified(
    exported: Callable[..., Artifact], picture_checkpoint: Path, precision: Precision
) -> None:
    artifact = exported(picture_checkpoint, "pictures", precision)
    record = artifact.manifest.verification
    assert record.failed is None
    assert (record.similarity is None) == (precision == "fp16")
    runtime, encoder = load_runtime(artifact), load_modules(artifact).encoder
    batch = packed_pictures(patches_of(encoder.config), PICTURES)
    runtime.warm_up(16, 9)
    (found,), _ = runtime.encode(batch, [(1, 2)], [])
    (alone,), _ = runtime.encode(
        packed_pictures(patches_of(encoder.config), PICTURES[1:2]), [(0, 2)], []
    )
    np.testing.assert_allclose(found, alone, atol=1e-5 if precision != "fp16" else 1e-2)


def test_t5_is_refused_in_half_precision_and_told_what_to_do(
    encoder_decoders: Callable[[str], Path], tmp_path: Path
) -> None:
    assert T5PreTrainedModel._keep_in_fp32_modules == ["wo"]
    with pytest.raises(ConfigError, match=r"t5 is not exported in fp16, .*; export it in fp32"):
        export(encoder_decoders("t5"), tmp_path / "out", "t5", "fp16")
    assert list(tmp_path.iterdir()) == []


def test_what_is_exported_in_what() -> None:
    with pytest.raises(ConfigError, match="mt5 is not exported in fp16"):
        check_precision("fp16", "mt5", decoder=False)
    with pytest.raises(ConfigError, match="is exported in fp32, not bf16"):
        check_precision("bf16", "t5", decoder=True)
    for precision in ("fp32", "bf16", "int8"):
        check_precision(precision, "t5", decoder=False)
    check_precision("fp16", "bart", decoder=True)
    check_precision("fp16", "not of ours", decoder=False)
