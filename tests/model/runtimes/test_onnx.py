from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import BertModel

from model.artifact.decomposition import DecompositionStep
from model.artifact.manifest import Artifact, load_artifact, record_file, write_manifest
from model.decomposition.layers import decomposed
from model.errors import ArtifactError, ModelError
from model.numerics.batch import Batch, pack
from model.runtimes.capabilities import Decomposition, capability
from model.runtimes.contract import LONE_TOKENS, Floats, Heads, Runtime
from model.runtimes.host_graphs import DecompositionGraphs, HeadGraphs
from model.runtimes.onnx import OnnxRuntime
from model.runtimes.pytorch import load_modules
from model.runtimes.registry import host_session, load_runtime
from service.system.resources import release_memory
from testing.memory import memory_bytes
from tests.model.refusals import refused

LENGTHS = [9, 4, 1]


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return pack([(rng.integers(0, 60, n), rng.integers(0, 2, n)) for n in lengths])


def rows_of(batch: Batch) -> list[slice]:
    """Return the tokens of each text in a batch."""
    return [slice(*ends) for ends in itertools.pairwise(batch.cu_seqlens)]


@pytest.fixture(scope="module")
def onnx(tiny_artifact: Artifact) -> OnnxRuntime:
    return OnnxRuntime(tiny_artifact)


def transformers_says(checkpoint: Path, batch: Batch) -> list[tuple[list[Any], list[Any]]]:
    """Return transformers' hidden states and attention maps of each text alone."""
    reference = BertModel.from_pretrained(
        checkpoint, attn_implementation="eager", dtype=torch.float32, add_pooling_layer=False
    ).eval()
    texts = []
    for rows in rows_of(batch):
        with torch.inference_mode():
            output = reference(
                torch.from_numpy(batch.input_ids[None, rows]),
                token_type_ids=torch.from_numpy(batch.token_type_ids[None, rows]),
                output_hidden_states=True,
                output_attentions=True,
            )
        tensors = (output.hidden_states, output.attentions)
        texts.append(tuple([tensor[0].numpy() for tensor in each] for each in tensors))
    return texts


class Recording:
    """Session that counts its runs, and can wait in one."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self.runs = 0
        self.entered, self.leave = threading.Event(), threading.Event()
        self.leave.set()

    def run(self, *arguments: Any) -> Any:
        self.runs += 1
        self.entered.set()
        assert self.leave.wait(60)
        return self._session.run(*arguments)


def test_a_short_text_alone_has_every_thread(tiny_artifact: Artifact) -> None:
    runtime = OnnxRuntime(tiny_artifact, threads=3)
    lone, shared = runtime._lone, runtime._encoder
    assert lone.get_session_options().intra_op_num_threads == 3
    assert shared.get_session_options().intra_op_num_threads == 1
    runtime._lone, runtime._encoder = lone, shared = Recording(lone), Recording(shared)

    short, long = batch_of([9]), batch_of([16] * (LONE_TOKENS // 16) + [1])
    lone.leave.clear()
    first = threading.Thread(target=runtime.hidden_states, args=(short, [2]))
    first.start()
    assert lone.entered.wait(60)
    runtime.hidden_states(short, [2])  # not alone
    assert (lone.runs, shared.runs) == (1, 1)
    lone.leave.set()
    first.join()
    runtime.hidden_states(long, [2])  # not short
    assert (lone.runs, shared.runs) == (1, 2)
    runtime.hidden_states(short, [2])
    assert (lone.runs, shared.runs) == (2, 2)


@pytest.mark.parametrize("length", [1, 7, 39, LONE_TOKENS])
def test_every_thread_gives_the_same_vectors(
    onnx: OnnxRuntime, tiny_artifact: Artifact, length: int
) -> None:
    batch = batch_of([length] if length < 16 else [16] * (length // 16))
    wide = OnnxRuntime(tiny_artifact, threads=2)
    for ours, theirs in zip(
        wide.hidden_states(batch, [0, 1, 2]), onnx.hidden_states(batch, [0, 1, 2]), strict=True
    ):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["encoder.onnx", "attention.onnx"])
def test_a_graph_that_cannot_be_loaded_is_named(
    artifact_copy: Path, tiny_artifact: Artifact, name: str
) -> None:
    (artifact_copy / name).write_bytes(b"not a graph")
    files = tiny_artifact.manifest.files | {name: record_file(artifact_copy / name)}
    write_manifest(artifact_copy, tiny_artifact.manifest.model_copy(update={"files": files}))
    refused(ModelError, f"cannot load {name}", OnnxRuntime, load_artifact(artifact_copy))


def test_memory_of_waiting_outputs_goes_back_to_the_system(onnx: OnnxRuntime) -> None:
    """256 MiB of maps are kept by an arena, until it is released; maps still in use stay."""
    states = np.random.default_rng(0).standard_normal((1024, 12), np.float32)
    batch, _ = batch_of(LENGTHS), release_memory()  # of earlier tests, which would go meanwhile
    before, hidden = memory_bytes("self", "VmRSS"), onnx.hidden_states(batch, range(3))
    maps = [capability(onnx, Heads).attention(states, states, 0, range(2)) for _ in range(32)]
    copy = maps[0].copy()
    held = memory_bytes("self", "VmRSS") - before
    del maps[1:]
    onnx.release_memory()
    released = memory_bytes("self", "VmRSS") - before
    assert held >= 0.9 * 2**28, "less what the process returned meanwhile"
    assert released <= held / 2
    assert np.array_equal(maps[0], copy)
    for kept, again in zip(hidden, onnx.hidden_states(batch, range(3)), strict=True):
        assert np.array_equal(kept, again)


def by_steps(runtime: Any, layers: int, embedded: Floats, rows: int) -> Floats:
    """Return the parts `[S, P, H]` of the last hidden state, given hidden state 0 `[S, H]`.

    A step computes so many rows. The runtime's artifact is whole and has L layers.
    """
    count = len(embedded)
    own = np.arange(count)
    decomposition = capability(runtime, Decomposition)
    first = decomposition.decompose(DecompositionStep(np.stack([embedded, embedded], axis=1), -1))
    assert first.values is not None
    parts = np.zeros((count, count + 1, embedded.shape[1]), np.float32)
    values = np.zeros((len(first.values), count, count + 1, first.values.shape[3]), np.float32)
    parts[:, 0], parts[own, own + 1] = first.parts[:, 0], first.parts[:, 1]
    values[:, :, 0], values[:, own, own + 1] = first.values[:, :, 0], first.values[:, :, 1]
    for layer in range(layers):
        states = parts[:, 0].copy()
        found = [
            decomposition.decompose(
                DecompositionStep(parts[start : start + rows], layer, start, states, values)
            )
            for start in range(0, count, rows)
        ]
        parts = np.concatenate([each.parts for each in found])
        if layer + 1 < layers:
            values = np.concatenate([each.values for each in found], axis=1)
        else:
            assert all(each.values is None for each in found)
    return parts


def embedded(tokens: int = 7, size: int = 12) -> Floats:
    return np.random.default_rng(1).standard_normal((tokens, size), np.float32)


def expected(artifact: Artifact, states: Floats) -> Floats:
    with torch.inference_mode():
        found: Floats = decomposed(load_modules(artifact).encoder, torch.from_numpy(states)).numpy()
    return found


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_steps_of_any_rows_equal_the_whole(
    runtime: Runtime, rows: int, tiny_artifact: Artifact
) -> None:
    """In every precision by the float32 weights."""
    found = by_steps(runtime, 2, embedded(), rows)
    np.testing.assert_allclose(found, expected(tiny_artifact, embedded()), atol=1e-5)
    np.testing.assert_allclose(found[:, 1:].sum(axis=1), found[:, 0], atol=1e-5)


def test_a_text_of_one_token_is_its_own(tiny_artifact: Artifact) -> None:
    found = by_steps(load_runtime(tiny_artifact), 2, embedded(1), 1)
    np.testing.assert_allclose(found[:, 1], found[:, 0], atol=1e-5)


def test_nothing_is_loaded_before_its_first_call(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, states = [], np.ones((1, 12), np.float32)

    def session(graph: Path) -> Any:
        opened.append(graph.name)
        return host_session(graph)

    monkeypatch.setattr("model.runtimes.host_graphs.host_session", session)
    graphs = HeadGraphs(tiny_artifact)
    assert opened == []
    for layer in (0, 1):
        graphs.value_products(states, layer, [0])
        graphs.head_scores(states, layer, [0])
        DecompositionGraphs(graphs).decompose(
            DecompositionStep(np.ones((1, 2, 12), np.float32), -1)
        )
    assert opened == ["value_norms.onnx", "head_scores.onnx", "decomposition_values.onnx"]


def test_damaged_weights_are_named(artifact_copy: Path, tiny_artifact: Artifact) -> None:
    runtime = load_runtime(tiny_artifact.__class__(artifact_copy, tiny_artifact.manifest, ""))
    (artifact_copy / "weights.safetensors").write_bytes(b"damaged!!")
    with pytest.raises(ArtifactError, match=r"weights\.safetensors cannot be read"):
        capability(runtime, Decomposition).decompose(
            DecompositionStep(np.ones((1, 2, 12), np.float32), -1)
        )
