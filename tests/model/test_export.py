from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import model.compare
from model.artifact import Artifact, load_artifact
from model.attention import AttentionSizes, MultiHeadAttention, causal_mask
from model.checkpoint import load_checkpoint, load_weights
from model.compare import Tolerance
from model.config import NormalizerName, ScoreName
from model.errors import ArtifactError, CheckpointError, ConfigError
from model.export import export
from model.graphs import to_onnx, without_metadata
from model.normalizers import NORMALIZERS
from model.packing import PackedBatch
from model.runtime_onnx import OnnxRuntime
from model.scores import SCORES
from model.signature import GraphSignature, TensorSpec
from tests.model.test_runtime import batch_of, rows_of

CHECKOUT = Path(__file__).resolve().parents[2]
PARITY = 5e-5
LENGTHS = [11, 1, 40, 6]

# ── ONNX against PyTorch ───────────────────────────────────────────────────────────────────


KINDS = [
    ("scaled_dot_product", "sparsemax"),
    ("additive", "softmax"),
    ("bilinear", "sparsemax"),
    ("cosine", "softmax"),
]
"""Every score and every normalizer; in other pairs in the tests of precisions."""


def test_every_kind_is_one_of_them() -> None:
    assert {score for score, _ in KINDS} == set(SCORES)
    assert {normalizer for _, normalizer in KINDS} == set(NORMALIZERS)


@pytest.mark.slow
@pytest.mark.parametrize(("score", "normalizer"), KINDS)
def test_every_kind_of_attention_is_exported(
    make_checkpoint: Callable[..., Path], score: str, normalizer: str
) -> None:
    checkpoint = make_checkpoint(
        attention_score=score,
        attention_normalizer=normalizer,
        hidden_size=6,
        num_hidden_layers=1,
    )
    exported = export(checkpoint, checkpoint.parent / "artifact", "a name")
    assert exported.verification.passed
    runtime, encoder = OnnxRuntime(exported.artifact), load_checkpoint(checkpoint)
    batch = batch_of(LENGTHS)
    with torch.inference_mode():
        expected = encoder(PackedBatch.of(batch), output_attentions=True)
    found = runtime.hidden_states(batch, [0, 1])
    for ours, theirs in zip(found, expected.hidden_states, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=PARITY)
    for text, (rows, n) in enumerate(zip(rows_of(batch), LENGTHS, strict=True)):
        maps = runtime.attention(found[0][rows], 0, range(3))
        np.testing.assert_allclose(
            maps, expected.attentions[0][text, :, :n, :n].numpy(), atol=PARITY
        )


class CausalCrossAttention(nn.Module):
    """The module as a decoder uses it: key apart from value, a mask, a head mask."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, attention_mask, head_mask = inputs
        mask = causal_mask(query.shape[1], key.shape[1]) & attention_mask.bool()[:, None, None, :]
        return self.attention(query, key, value, mask, head_mask)


SIZES = AttentionSizes(num_heads=3, d_q=4, d_k=5, d_v=6, p_q=2, p_k=2, p_v=3, p_o=7)
UNEQUAL = AttentionSizes(num_heads=2, d_q=4, d_k=5, d_v=6, p_q=3, p_k=2, p_v=4, p_o=3)


def module_signature(sizes: AttentionSizes) -> GraphSignature:
    queries, keys = ("batch", "queries"), ("batch", "keys")
    axes = {
        "query": (*queries, sizes.d_q),
        "key": (*keys, sizes.d_k),
        "value": (*keys, sizes.d_v),
        "attention_mask": keys,
        "head_mask": ("batch", sizes.num_heads),
        "output": (*queries, sizes.p_o),
        "weights": ("batch", sizes.num_heads, "queries", "keys"),
    }
    specs = [TensorSpec(name=name, dtype="float32", axes=each) for name, each in axes.items()]
    return GraphSignature(inputs=tuple(specs[:5]), outputs=tuple(specs[5:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "normalizer", "sizes"),
    [
        ("scaled_dot_product", "softmax", SIZES),
        ("cosine", "sparsemax", SIZES),
        ("bilinear", "softmax", UNEQUAL),
        ("additive", "sparsemax", UNEQUAL),
    ],
)
def test_the_attention_module_is_exported(
    score: ScoreName, normalizer: NormalizerName, sizes: AttentionSizes
) -> None:
    torch.manual_seed(0)
    module = CausalCrossAttention(MultiHeadAttention(sizes, score, normalizer)).eval()
    signature = module_signature(sizes)
    names = [spec.name for spec in signature.inputs]

    def inputs(b: int, t: int, s: int) -> tuple[Tensor, ...]:
        shapes = ((t, sizes.d_q), (s, sizes.d_k), (s, sizes.d_v))
        real = (torch.arange(s) < torch.arange(s, s - b, -1)[:, None]).long()
        return (*(torch.randn(b, *shape) for shape in shapes), real, torch.rand(b, sizes.num_heads))

    graph = to_onnx(module, inputs(2, 3, 4), signature).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    assert [item.name for item in session.get_outputs()] == ["output", "weights"]
    for b, t, s in ((2, 3, 4), (1, 7, 5), (4, 6, 9), (1, 1, 1)):
        example = inputs(b, t, s)
        feed = {name: tensor.numpy() for name, tensor in zip(names, example, strict=True)}
        with torch.inference_mode():
            expected = module(*example)
        for found, theirs in zip(session.run(None, feed), expected, strict=True):
            np.testing.assert_allclose(found, theirs.numpy(), atol=PARITY)


# ── the artifact ───────────────────────────────────────────────────────────────────────────


def test_an_artifact_says_what_it_is(tiny_artifact: Artifact, tiny_checkpoint: Path) -> None:
    manifest = load_artifact(tiny_artifact.folder).manifest
    assert (manifest.model, manifest.engine, manifest.precision) == ("tiny", "onnx", "fp32")
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


def test_the_graphs_match_their_signature(tiny_artifact: Artifact) -> None:
    for name, signature in tiny_artifact.manifest.signature.items():
        graph = onnx.load(tiny_artifact.path(f"{name}.onnx"), load_external_data=False).graph
        for specs, values in ((signature.inputs, graph.input), (signature.outputs, graph.output)):
            assert [spec.name for spec in specs] == [value.name for value in values]
            for spec, value in zip(specs, values, strict=True):
                dims = value.type.tensor_type.shape.dim
                assert list(spec.axes) == [dim.dim_param or dim.dim_value for dim in dims]
                assert spec.dtype == {1: "float32", 7: "int64"}[value.type.tensor_type.elem_type]


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
    assert files == {"encoder.onnx.data"}


def test_progress_is_told(make_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(ConfigError):
        export(tmp_path / "absent", tmp_path / "artifact", "a name", progress=told.append)
    assert told == ["reading a name"]


# ── the same checkpoint gives the same bytes ───────────────────────────────────────────────


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_an_export_is_the_same_bytes_elsewhere(
    tiny_artifact: Artifact, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    again = export(tiny_checkpoint, tmp_path / "another" / "place", "tiny").artifact
    assert content(again.folder) == content(tiny_artifact.folder)
    assert again.sha256 == tiny_artifact.sha256


@pytest.mark.slow
def test_an_export_is_the_same_bytes_in_another_process(
    tiny_artifact: Artifact, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy of the checkpoint"
    copy.symlink_to(tiny_checkpoint)
    program = (
        "import sys; from pathlib import Path; from model.export import export\n"
        "export(Path(sys.argv[1]), Path('artifact'), 'tiny')"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(copy)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert content(tmp_path / "artifact") == content(tiny_artifact.folder)


def test_no_file_names_the_machine(tiny_artifact: Artifact, tiny_checkpoint: Path) -> None:
    places = (CHECKOUT, Path.home(), tiny_checkpoint, tiny_artifact.folder, sys.prefix)
    traces = [str(place).encode() for place in places]
    traces += [b"site-packages", b"/tmp", b".py"]
    for name, found in content(tiny_artifact.folder).items():
        assert [trace for trace in traces if trace in found] == [], name
        assert not says(text_of(name, found), os.uname().nodename), name


def text_of(name: str, content: bytes) -> str:
    """What of an artifact's file is the exporter's text: a host's name may be two letters, which
    stand somewhere in any tensor, and in any vocabulary."""
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
    tensors = files["golden.safetensors"] + files["encoder.onnx.data"]
    hosts = {host.decode() for host in re.findall(rb"[a-z][a-z0-9]", tensors)}
    assert len(hosts) > 20  # each of which stands in a tensor
    said = {host for host in hosts if any(says(text, host) for text in texts.values())}
    assert len(said) < len(hosts) / 10  # "id" is a word of ours
    graph = onnx.load_from_string(files["encoder.onnx"])
    graph.graph.node[0].doc_string = "made on VM.local"
    assert says(text_of("encoder.onnx", graph.SerializeToString()), "vm")
    assert says(text_of("manifest.json", b'{"host": "vm"}'), "vm")
    header = b'{"__metadata__": {"host": "build_vm"}}'
    file = len(header).to_bytes(8, "little") + header + b"\x00\xff"
    assert says(text_of("heads.safetensors", file), "vm")


def test_metadata_is_stripped_everywhere() -> None:
    tensor = onnx.helper.make_tensor("w", 1, [1], [1.0])
    value = onnx.helper.make_tensor_value_info("y", 1, [1], doc_string="a path")
    node = onnx.helper.make_node("Identity", ["w"], ["y"], doc_string="a path")
    graph = onnx.helper.make_graph([node], "g", [], [value], [tensor], doc_string="a path")
    graph.value_info.append(onnx.helper.make_tensor_value_info("a path", 1, [1]))
    traced = onnx.helper.make_model(graph, doc_string="a path")
    graph = traced.graph
    for item in (traced, graph, graph.node[0], graph.output[0], graph.initializer[0]):
        item.metadata_props.add(key="stack trace", value="a path")
    assert traced.SerializeToString().count(b"a path") == 10
    assert b"a path" not in without_metadata(traced).SerializeToString()


# ── what is refused, and what is left behind ───────────────────────────────────────────────


@pytest.mark.parametrize("taken", ["folder", "file"])
def test_a_place_that_is_taken_is_left_alone(
    tiny_checkpoint: Path, tmp_path: Path, taken: str
) -> None:
    out = tmp_path / "out"
    file = out / "mine" if taken == "folder" else out
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(ArtifactError, match="exists and is not an empty folder"):
        export(tiny_checkpoint, out, "tiny")
    assert file.read_text() == "mine"
    assert list(tmp_path.rglob("*")) == sorted({out, file})


def test_a_checkpoint_that_is_not_usable_leaves_nothing_behind(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError):
        export(checkpoint, tmp_path / "out" / "artifact", "tiny")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_export_that_fails_its_verification_says_so(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = dict.fromkeys(("hidden", "attention", "pooled"), Tolerance(0.0, 0.0, 0.0))
    monkeypatch.setitem(model.compare.TOLERANCES, "fp32", nothing)
    told: list[str] = []
    (tmp_path / "out").mkdir()  # an empty folder is as good as none
    checkpoint = make_checkpoint(num_hidden_layers=1)
    exported = export(checkpoint, tmp_path / "out", "tiny", progress=told.append)
    assert told[-1] == "verification FAILED"
    assert not exported.verification.passed
    assert not load_artifact(tmp_path / "out").manifest.verification.passed
