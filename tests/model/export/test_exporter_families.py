"""Families that compute differently from BERT, and contents of artifacts in each precision.

The models have one layer, as all layers are alike; test_graphs_families.py tests shared parts.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch
from transformers import AutoModel

from model.artifact.manifest import FILES, TOKENIZER, Artifact, load_artifact
from model.config.precision import Precision
from model.export.exporter import export
from model.export.verify import verify
from model.numerics.batch import pack
from model.numerics.comparison import TOLERANCES
from model.numerics.pooling import TextPooling
from model.runtimes.registry import has_products, load_runtime, runtime_of, weight_bits
from model.tokenization.vocabulary import read_tokenizer
from tests.model.checkpoints import write_tokenizer
from tests.model.export.test_exporter import content
from tests.model.export.test_verify import edit_graph, failed_keys, verified
from tests.model.families.parity import SIZES, model_of
from tests.model.families.test_encoder_parity import QWEN3, VERSION_3

pytestmark = pytest.mark.slow


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("MPNet", SIZES),
    "qwen3": ("Qwen3", QWEN3),
    "deberta": ("DebertaV2", SIZES | VERSION_3),
}
TEXTS = ("the cat", "a b c d e f g the cat . the cat", "")
LEAST_COSINE = {"fp16": 0.99999, "bf16": 0.999, "int8": 0.98}
ALWAYS = {("qwen3", "int8"), ("deberta", "int8")}
"""Pairs in `make test`; the tiny BERT tests every precision, test_graphs_families.py float32."""
CASES = [
    pytest.param(*case, marks=[pytest.mark.nightly] * (case not in ALWAYS))
    for case in itertools.product(MODELS, LEAST_COSINE)
]


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, fields = MODELS[request.param]
    folder = tmp_path_factory.mktemp("coarse") / request.param
    torch.manual_seed(0)
    own = {"num_hidden_layers": 1, "initializer_range": 0.1, "pad_token_id": 0}
    model_of(family, **fields | own).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize(("checkpoint", "precision"), CASES, indirect=["checkpoint"])
def test_vectors_are_near_transformers(
    checkpoint: Path, precision: Precision, exported: Callable[..., Artifact]
) -> None:
    artifact = exported(checkpoint, f"coarse-{checkpoint.name}", precision)
    assert artifact.manifest.verification.passed, artifact.manifest.verification.failed
    reference = AutoModel.from_pretrained(
        checkpoint, attn_implementation="eager", dtype=torch.float32
    ).eval()
    tokenizer = read_tokenizer(artifact.path(TOKENIZER))
    texts = [tokenizer.encode(text) for text in TEXTS]
    poolings = [TextPooling(text, 1, "mean") for text in range(len(texts))]
    batch = pack([(text.ids, text.type_ids) for text in texts])
    _, vectors = load_runtime(artifact).encode(batch, [], poolings)
    for text, served in zip(texts, vectors, strict=True):
        ids = torch.tensor([text.ids])
        with torch.inference_mode():
            states = reference(input_ids=ids, attention_mask=torch.ones_like(ids))
        expected = states.last_hidden_state[0].double().mean(dim=0).numpy()
        vector = np.asarray(served, np.float64)
        cosine = vector @ expected / np.linalg.norm(vector) / np.linalg.norm(expected)
        assert LEAST_COSINE[precision] <= cosine
        if has_products(precision) or precision == "int8":
            assert cosine < 1 - 1e-9  # not float32 after all


KINDS = ("hidden", "attention", "values", "pooled")
PROVIDERS = {"fp16": "CPUExecutionProvider", "bf16": "OpenVINO CPU", "int8": "OpenVINO CPU"}


@pytest.fixture(params=["fp16", "bf16", "int8"])
def artifact(request: pytest.FixtureRequest) -> Artifact:
    found: Artifact = request.getfixturevalue(f"tiny_{request.param}")
    return found


def test_the_manifest_names_precision_and_runtime(
    artifact: Artifact, tiny_artifact: Artifact
) -> None:
    manifest = load_artifact(artifact.folder).manifest
    assert manifest.runtime == runtime_of(manifest.precision)
    assert manifest.weight_bits == weight_bits(manifest.precision)
    assert manifest.verification.provider == PROVIDERS[manifest.precision]
    exact = tiny_artifact.manifest
    assert (exact.precision, exact.runtime, exact.weight_bits) == ("fp32", "onnx", None)
    for name in ("model", "config", "sentence", "exporter"):
        assert getattr(manifest, name) == getattr(exact, name)
    assert (manifest.signature == exact.signature) == (manifest.precision != "fp16")


def test_half_precision_stays_on_the_device(tiny_fp16: Artifact) -> None:
    """All outputs to the host are float32."""
    half = {
        (graph, spec.name)
        for graph, signature in tiny_fp16.manifest.signature.items()
        for spec in (*signature.inputs, *signature.outputs)
        if spec.dtype == "float16"
    }
    parameters = ("query_weight", "query_bias", "key_weight", "key_bias")
    assert half == {
        *(("encoder", f"hidden_state.{layer}") for layer in range(3)),
        *(("device_attention", name) for name in ("hidden_state", *parameters)),
        ("device_pooling", "hidden_state"),
    }
    graph = onnx.load(tiny_fp16.path("encoder.onnx")).graph
    kinds = {item.data_type for item in graph.initializer if len(item.dims) > 1}
    assert kinds == {onnx.TensorProto.FLOAT16}


def test_the_record_says_how_near_it_came(artifact: Artifact) -> None:
    precision, record = artifact.manifest.precision, artifact.manifest.verification
    assert record.passed
    assert record.inputs > 20
    result = verify(artifact)
    assert result.record().passed
    assert record.tolerances.keys() == TOLERANCES[precision].keys() - {"task", "token_vectors"}
    for kind, tolerance in TOLERANCES[precision].items():
        if kind in ("task", "token_vectors"):
            continue
        found = result.comparison.worst(kind).min_cosine
        assert record.tolerances[kind] == vars(tolerance)
        assert tolerance.cosine_at_least <= found <= 1 + 1e-9
        assert record.min_cosine[kind] == pytest.approx(found, abs=1e-4)
        if not tolerance.rtol:
            assert result.comparison.worst(kind).max_abs_diff <= tolerance.atol
        if has_products(precision) or precision == "int8":
            assert result.comparison.worst(kind).max_abs_diff > 1e-4  # not float32 after all
    least = {"fp16": 0.99999, "bf16": 0.9999, "int8": 0.99}[precision]
    assert result.comparison.worst("pooled").min_cosine >= least


def test_only_the_encoders_graph_is_another(artifact: Artifact, tiny_artifact: Artifact) -> None:
    found, exact = content(artifact.folder), content(tiny_artifact.folder)
    another = {name for name in FILES if found[name] != exact[name]}
    may = {"encoder.onnx", "encoder.onnx.data"}
    if artifact.manifest.precision == "fp16":
        may |= {"device_attention.onnx", "device_pooling.onnx"}
    assert {"encoder.onnx"} <= another <= may


def test_every_precision_has_a_runtime_and_tolerances() -> None:
    precisions = set(get_args(Precision))
    runtimes = {precision: runtime_of(precision) for precision in get_args(Precision)}
    assert runtimes == {"fp32": "onnx", "fp16": "onnx", "bf16": "openvino", "int8": "openvino"}
    assert set(TOLERANCES) == precisions
    assert all(set(of_kind) == {*KINDS, "task", "token_vectors"} for of_kind in TOLERANCES.values())


@pytest.fixture
def copy(artifact: Artifact, tmp_path: Path) -> Path:
    return Path(shutil.copytree(artifact.folder, tmp_path / "copy"))


def see_padding(graph: onnx.GraphProto) -> None:
    (mask,) = (node for node in graph.node if node.op_type in ("Greater", "GreaterOrEqual"))
    mask.CopyFrom(onnx.helper.make_node("Equal", [mask.input[0]] * 2, [*mask.output]))


def forget_positions(graph: onnx.GraphProto) -> None:
    (node,) = (node for node in graph.node if "position_ids" in node.input)
    node.input[:] = ["token_type_ids" if name == "position_ids" else name for name in node.input]


@pytest.mark.parametrize("damage", [see_padding, forget_positions])
def test_a_wrong_graph_fails(copy: Path, damage: Callable[[onnx.GraphProto], None]) -> None:
    edit_graph(copy / "encoder.onnx", damage)
    result = verified(copy)
    assert not result.record().passed
    assert result.comparison.mismatches == []
    assert {key.kind for key in failed_keys(result)} >= {"pooled"}


def test_wrong_weights_fail(copy: Path) -> None:
    def take_the_next_words_embedding(graph: onnx.GraphProto) -> None:
        matrices = (item for item in graph.initializer if len(item.dims) == 2)
        largest = max(matrices, key=lambda item: math.prod(item.dims))
        rows = onnx.numpy_helper.to_array(largest, base_dir=str(copy))
        largest.CopyFrom(onnx.numpy_helper.from_array(np.roll(rows, 1, axis=0), largest.name))

    edit_graph(copy / "encoder.onnx", take_the_next_words_embedding)
    assert not verified(copy).record().passed


@pytest.mark.nightly
def test_an_export_is_the_same_bytes_in_another_process(
    tiny_fp16: Artifact, tiny_int8: Artifact, coarse_elsewhere: Path
) -> None:
    """The verification's figures depend on the machine."""
    half = ("encoder.onnx", "encoder.onnx.data")
    for artifact, folder, names in ((tiny_fp16, "fp16", half), (tiny_int8, "int8", FILES)):
        for name in names:
            there = (coarse_elsewhere / folder / name).read_bytes()
            assert there == artifact.path(name).read_bytes(), (folder, name)
    here, there = (
        one.manifest.model_copy(update={"verification": None})
        for one in (tiny_int8, load_artifact(coarse_elsewhere / "int8"))
    )
    assert here == there


@pytest.mark.parametrize(
    ("precision", "score", "normalizer", "activation"),
    [
        ("int8", "additive", "softmax", "relu"),
        pytest.param("fp16", "cosine", "sparsemax", "silu", marks=pytest.mark.nightly),
    ],
)
def test_every_kind_of_encoder_can_be_int8_or_half(
    make_checkpoint: Callable[..., Path],
    precision: Precision,
    score: str,
    normalizer: str,
    activation: str,
) -> None:
    checkpoint = make_checkpoint(
        attention_score=score,
        attention_normalizer=normalizer,
        hidden_act=activation,
        num_hidden_layers=1,
    )
    reported: list[str] = []
    artifact = export(checkpoint, checkpoint.parent / "out", "a name", precision, reported.append)
    assert artifact.passed, artifact.manifest.verification
    assert reported[0] == "reading a name"
    assert ("calibrating int8" in reported) == (precision == "int8")
    assert reported[-1] == "verified"
