"""Graph of vectors for a device: its operators, its numbers, and the texts that it computes."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from transformers import BertModel

from model.artifact.manifest import GRAPHS, Artifact
from model.artifact.signature import Float
from model.checkpoint import load_checkpoint
from model.config.encoder import AttentionLayout
from model.errors import ModelError
from model.export.emulation import OPERATOR, emulate
from model.export.vectors_graph import export_vectors, obstacle
from model.numerics.batch import Batch, coarser, pack, select
from model.numerics.comparison import TOLERANCES
from model.numerics.pooling import TextPooling
from model.runtimes import onnx as onnx_runtime
from model.runtimes.bound import Bound
from model.runtimes.contract import Resources
from model.runtimes.device_vectors import dummy_lengths, packed_inputs
from model.runtimes.onnx_device import BoundRuntime
from model.runtimes.registry import load_runtime
from tests.model.export.test_verify import edit_graph, failed_keys, verified
from tests.model.families.parity import texts_of
from tests.model.jina_v3 import TASKS, Reference, write_published
from tests.model.packed_vectors import assert_packed_vectors_equal, packed_vectors
from tests.model.runtimes.conftest import EVEN
from tests.model.runtimes.test_onnx import batch_of
from tests.model.runtimes.test_onnx_device import Session

pytestmark = pytest.mark.slow
LENGTHS = [5, 64, 1, 512, 33]
LAYER = {
    "MatMul": 5,
    "FusedMatMul": 1,
    "Add": 1,
    OPERATOR: 1,
    "SkipLayerNormalization": 2,
    "BiasGelu": 1,
}
"""Operators of a layer of BERT: eleven, of which none moves or copies tokens."""


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("float16", 1e-3)])
def test_unit_vectors_of_a_real_model_equal_transformers(
    minilm_checkpoint: Path, dtype: Float, atol: float
) -> None:
    generator = np.random.default_rng(0)
    texts = [generator.integers(1000, 30_000, length) for length in LENGTHS]
    batch = pack([(ids, np.zeros_like(ids)) for ids in texts])
    reference = BertModel.from_pretrained(
        minilm_checkpoint, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.inference_mode():
        states = [reference(torch.from_numpy(ids)[None]).last_hidden_state[0] for ids in texts]
    expected = np.stack([state.mean(dim=0).numpy() for state in states])
    _, units = packed_vectors(load_checkpoint(minilm_checkpoint), batch, "mean", dtype)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(units, expected, atol=atol, rtol=0)


def test_texts_with_different_adapters_equal_transformers(tmp_path: Path) -> None:
    reference, tasks = Reference(), (None, *TASKS)
    encoder = load_checkpoint(write_published(reference, tmp_path))
    texts = texts_of(encoder, range(3, 3 + len(tasks)))
    batch = pack([(text, [number] * len(text)) for number, text in enumerate(texts)])
    with torch.inference_mode():
        states = [
            reference.of(task)(input_ids=text[None]).last_hidden_state[0].numpy()
            for task, text in zip(tasks, texts, strict=True)
        ]
    assert obstacle(encoder.config, "mean") is None
    assert_packed_vectors_equal(encoder, batch, states)


def test_a_layer_has_eleven_operators(make_checkpoint: Callable[..., Path]) -> None:
    shallow, deep = (
        Counter(node.op_type for node in export_vectors(encoder, "mean").graph.node)
        for encoder in (
            load_checkpoint(make_checkpoint(num_hidden_layers=layers, **EVEN)) for layers in (1, 3)
        )
    )
    assert {name: count / 2 for name, count in (deep - shallow).items()} == LAYER


@pytest.mark.parametrize(
    ("change", "pooling", "reason"),
    [
        ({}, "mean", None),
        ({}, "max", "it pools by max"),
        ({}, "none", "it pools by none"),
        ({"attention_score": "cosine"}, "mean", "its score is not q·k / √p"),
        ({"attention_normalizer": "sparsemax"}, "mean", "its weights are not a softmax"),
        ({"attention": AttentionLayout(causal=True)}, "last", "the operator has no causal form"),
        ({"hidden_size": 12}, "mean", "its hidden size is not a multiple of 8"),
    ],
)
def test_encoders_without_such_a_graph_have_a_reason(
    tiny_artifact: Artifact, change: dict[str, Any], pooling: str, reason: str | None
) -> None:
    config = tiny_artifact.manifest.config.model_copy(update={"hidden_size": 24} | change)
    assert obstacle(config, pooling) == reason


class Counted:
    """Sessions of a runtime that count the runs of each."""

    def __init__(self, runtime: BoundRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = {"vectors": 0, "encoder": 0}
        fetch, keep = Bound.fetch, Bound.keep

        def fetched(bound: Bound, *how: Any) -> Any:
            self.runs["vectors"] += runtime.vectors is not None and bound is runtime.vectors.session
            return fetch(bound, *how)

        def kept(bound: Bound, *how: Any) -> Any:
            self.runs["encoder"] += 1
            return keep(bound, *how)

        monkeypatch.setattr(Bound, "fetch", fetched)
        monkeypatch.setattr(Bound, "keep", kept)


@pytest.fixture(scope="module")
def runtime(half: Artifact) -> BoundRuntime:
    runtime = load_runtime(half)
    assert isinstance(runtime, BoundRuntime)
    assert emulate(half, runtime)
    return runtime


@pytest.fixture
def counted(runtime: BoundRuntime, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(runtime, monkeypatch)


BATCH = batch_of([9, 4, 1, 17])
USUAL = [TextPooling(text, 2, "mean") for text in range(4)]
ATOL = TOLERANCES["fp16"]["hidden"].atol


def near(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=ATOL, rtol=0)


def test_the_usual_request_is_one_run(runtime: BoundRuntime, counted: Counted) -> None:
    states, vectors = runtime.encode(BATCH, [], [*USUAL, USUAL[2]])
    assert counted.runs == {"vectors": 1, "encoder": 0}
    assert not states
    np.testing.assert_array_equal(vectors[4], vectors[2])
    _, units = runtime.encode(BATCH, [], [replace(own, unit_features=24) for own in USUAL])
    for unit, vector in zip(units, vectors[:4], strict=True):
        np.testing.assert_allclose(unit, vector / np.linalg.norm(vector), atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "max"},
        {"mode": "cls"},
        {"layer": 1},
        {"first_token": 1},
        {"left_out": (3,)},
        {"unit_features": 8},
    ],
)
def test_another_pooling_comes_from_hidden_states(
    runtime: BoundRuntime, counted: Counted, change: dict[str, Any]
) -> None:
    """The other texts' vectors still come from the graph of vectors."""
    asked = [USUAL[0], replace(USUAL[3], **change), USUAL[1], USUAL[2]]
    _, vectors = runtime.encode(BATCH, [], asked)
    assert counted.runs == {"vectors": 1, "encoder": 1}
    states = runtime.hidden_states(BATCH, [asked[1].layer, 2])
    rows = states[0][14:31]
    expected = runtime.pool(rows, asked[1].mode, asked[1].first_token, asked[1].left_out)
    if n := asked[1].unit_features:
        expected[:n] /= np.linalg.norm(expected[:n])
        vectors[1], expected = vectors[1][:n], expected[:n]
    near(vectors[1], expected)
    near(vectors[2], states[1][9:13].mean(axis=0))


def test_masked_tokens_and_ablated_heads_come_from_hidden_states(
    runtime: BoundRuntime, counted: Counted
) -> None:
    ends = BATCH.cu_seqlens
    texts = [BATCH.input_ids[ends[n] : ends[n + 1]] for n in range(4)]
    masked = pack([(ids, np.zeros_like(ids)) for ids in texts], [(), (1,), (), ()])
    mask = np.ones((4, 2, 3), np.float32)
    mask[3, 1, 2] = 0
    _, vectors = runtime.encode(masked, [(0, 1)], USUAL, mask)
    assert counted.runs == {"vectors": 1, "encoder": 1}
    (states,) = runtime.hidden_states(masked, [2], mask)
    for text, vector in enumerate(vectors):
        near(vector, states[ends[text] : ends[text + 1]].mean(axis=0))
    _, plain = runtime.encode(BATCH, [], USUAL)
    assert np.abs(plain[1] - vectors[1]).max() > ATOL / 10


class Reporting(Session):
    """Session that prints its attention kernel as ONNX Runtime does, where it was asked to."""

    def __init__(self, artifact: Artifact, name: str) -> None:
        super().__init__(artifact, name)
        self.reports = "ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO" in os.environ

    def run_with_iobinding(self, binding: Any) -> None:
        if self.reports:
            os.write(1, b"Operator=x Node=y DataType=fp16 SdpaKernel=MATH\n")
        super().run_with_iobinding(binding)


@pytest.mark.usefixtures("as_on_cuda")
def test_a_gpu_reports_its_attention_kernels(
    half: Artifact, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = {file: name for name, file in GRAPHS.items()}
    monkeypatch.setattr(
        onnx_runtime, "_session", lambda path, *_, **__: Reporting(half, names[path.name])
    )
    runtime = onnx_runtime.load(half, Resources("cuda"))
    assert isinstance(runtime, BoundRuntime)
    assert runtime.attention_kernels == ("MATH",)
    assert "no fused attention" in caplog.text
    assert runtime.vectors is not None
    assert not runtime.vectors.session._session.reports
    _, vectors = runtime.encode(BATCH, [], USUAL)
    (states,) = runtime.hidden_states(BATCH, [2])
    near(vectors[3], states[14:].mean(axis=0))


def test_dummy_texts_fill_a_batch_up_to_few_sizes(half: Artifact) -> None:
    config = half.manifest.config
    names = [spec.name for spec in half.manifest.signature["vectors"].inputs]
    batch = batch_of([40, 33, 2])
    feed = packed_inputs(batch, config, names, last=False)
    total = coarser(75, 8)
    assert total == 80
    assert {name: array.shape for name, array in feed.items()} == {
        "input_ids": (total,),
        "embedding_rows": (total,),
        "token_offset": (4, 40),
        "cu_seqlens": (5,),
        "pooled_rows": (3,),
    }
    assert {array.dtype.name for array in feed.values()} == {"int32"}
    assert feed["cu_seqlens"].tolist() == [0, 40, 73, 75, 80]
    assert sorted(feed["token_offset"].flat) == [*range(160)]
    last = packed_inputs(batch, config, names, last=True)
    assert last["pooled_rows"].tolist() == [39, 72, 74]


def test_batches_beyond_the_kernel_of_rotary_positions_are_refused(
    half: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.runtimes.device_vectors.MOST_ROTATED", 32)
    rotary = half.manifest.config
    names = ["input_ids", "position_ids"]
    batches = batch_of([16, 16]), batch_of([16, 17])
    assert packed_inputs(batches[0], rotary, names, last=False)["position_ids"].dtype == np.int64
    with pytest.raises(
        ModelError, match=r"a batch of 40 tokens .* --max-batch-tokens to at most 16"
    ):
        packed_inputs(batches[1], rotary, names, last=False)


def test_texts_are_selected_with_their_masks_and_pixels() -> None:
    pixels = [np.full((3, 2), value, np.float32) for value in (1, 2)]
    ids = np.arange(3)
    batch = pack([(ids, ids), (ids + 3, ids)], [(0,), (1, 2)], pixels)
    other = select(batch, [1, 0])
    expected = pack([(ids + 3, ids), (ids, ids)], [(1, 2), (0,)], pixels[::-1])
    equal(other, expected)
    assert not dummy_lengths(batch)  # its pixels would be copied


def equal(found: Batch, expected: Batch) -> None:
    for ours, theirs in zip(found.inputs, expected.inputs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_wrong_graph_of_vectors_fails_the_verification(half: Artifact, tmp_path: Path) -> None:
    assert half.manifest.verification.emulated
    copy = Path(shutil.copytree(half.folder, tmp_path / "copy"))

    def attend_evenly(graph: onnx.GraphProto) -> None:
        node = next(node for node in graph.node if node.op_type == OPERATOR)
        (scale,) = [attribute for attribute in node.attribute if attribute.name == "scale"]
        scale.CopyFrom(helper.make_attribute("scale", 1e-20))

    edit_graph(copy / GRAPHS["vectors"], attend_evenly)
    result = verified(copy)
    assert not result.record().passed
    assert {key.kind for key in failed_keys(result)} == {"pooled"}
