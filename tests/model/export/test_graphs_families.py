"""Graphs of encoders that differ from BERT, on ONNX Runtime and in both layouts.

tests/model/families compares PyTorch with transformers. tests/journeys/test_families.py tests
RoBERTa-like graphs; this file tests other families, scores and normalizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from model.artifact.manifest import GRAPHS, HEADS, WEIGHTS
from model.artifact.signature import HeadGraph, hidden_state_name
from model.attention.scores import SCORES
from model.attention.weights import NORMALIZERS
from model.checkpoint import load_checkpoint
from model.decomposition.layers import decomposed
from model.encoder.encoder import Encoder
from model.export.graphs import (
    GRID_INPUTS,
    export_encoder,
    grid_states,
    head_parameters,
    weightless_graphs,
)
from model.export.to_onnx import save_graph
from model.export.verify import signature_mismatches
from model.numerics.batch import Batch, pack, padded, widen
from model.packing import PackedBatch
from model.runtimes.host_graphs import DecompositionGraphs, HeadGraphs
from model.runtimes.pytorch import TorchEncoderHeads
from tests.model.checkpoints import write_checkpoint
from tests.model.families.parity import SIZES, VOCABULARY, model_of, saved, texts_of
from tests.model.families.test_encoder_parity import (
    GEMMA3,
    LLAMA,
    MODERNBERT,
    QWEN3,
    VERSION_3,
    YARN,
)
from tests.model.runtimes.test_onnx import by_steps

pytestmark = pytest.mark.slow
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("Albert", SIZES | {"embedding_size": 16}),
    "mpnet": ("MPNet", SIZES),
    "deberta": ("DebertaV2", SIZES | VERSION_3),
    "qwen3": ("Qwen3", QWEN3 | {"max_position_embeddings": 2048}),
    "llama": ("Llama", LLAMA | {"rope_parameters": YARN}),
    "gte": ("Gte", SIZES),
    "gemma3": ("Gemma3Text", GEMMA3),
    "modernbert": ("ModernBert", MODERNBERT),
}
ALIKE = ("qwen3", "llama", "gte")
"""Families without anything that layers share or alternate, tested with one layer."""
KINDS = {
    "additive": {"attention_score": "additive"},
    "bilinear": {"attention_score": "bilinear"},
    "cosine": {"attention_score": "cosine", "attention_normalizer": "sparsemax"},
}
"""All scores but BERT's, and all normalizers; tests of precisions use the first and the last."""
THREE_AXES = ("mpnet", "gemma3", "cosine")
"""Families whose graphs are tested in OpenVINO's layout; the arithmetic is independent of it."""
LENGTHS = (1, 5, 17, 33)


def session(graph: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )


@pytest.fixture(autouse=True)
def _traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that no graph needs a second trace, which takes as long as an export."""

    def again(*_: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr("model.export.torch_exporter._traced_again", again)


def test_every_kind_is_one_of_them() -> None:
    assert {kind["attention_score"] for kind in KINDS.values()} == set(SCORES) - {
        "scaled_dot_product"
    }
    normalizers = {kind.get("attention_normalizer", "softmax") for kind in KINDS.values()}
    assert normalizers == set(NORMALIZERS)


@pytest.fixture(scope="module", params=[*MODELS, *KINDS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def encoder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder: Path = tmp_path_factory.mktemp(name)
    if name in KINDS:
        sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": 1}
        return load_checkpoint(write_checkpoint(folder, **sizes | KINDS[name]))
    family, fields = MODELS[name]
    layers = {"num_hidden_layers": 1 if name in ALIKE else 2}
    return load_checkpoint(saved(model_of(family, **fields | layers), folder))


@pytest.fixture(scope="module")
def expected(encoder: Encoder) -> Any:
    batch = packed(encoder)
    with torch.no_grad():
        return batch, encoder(PackedBatch.of(batch), output_attentions=True)


def packed(encoder: Encoder, unseen: Sequence[tuple[int, ...]] = ()) -> Batch:
    return pack([(text, [0] * len(text)) for text in texts_of(encoder, LENGTHS)], unseen)


def test_hidden_states_equal_pytorchs(name: str, encoder: Encoder, expected: Any) -> None:
    batch, output = expected
    run = session(export_encoder(encoder, three_axes=name in THREE_AXES))
    config = encoder.config
    wide = widen(batch, len(LENGTHS) + 1, max(LENGTHS) + 3)
    holes = packed(encoder, [(), (0,), (4,), (1, 32)])  # that they are transformers' is in parity
    with torch.no_grad():
        of_holes = encoder(PackedBatch.of(holes)).hidden_states
    for grid, hidden_states in (
        (batch, output.hidden_states),
        (wide, output.hidden_states),
        (holes, of_holes),
    ):
        rows = len(grid.padded_index)
        mask = np.ones((rows, config.num_hidden_layers, config.num_attention_heads), np.float32)
        names = [value.name for value in run.get_inputs()]
        found = run.run(None, dict(zip(names, (*grid.inputs, mask), strict=True)))
        assert [value.name for value in run.get_outputs()] == [
            hidden_state_name(layer) for layer in range(config.num_hidden_layers + 1)
        ]
        for state, reference in zip(found, hidden_states, strict=True):
            atol = 1e-5 * reference.abs().max().item()
            np.testing.assert_allclose(state, reference.numpy(), atol=atol, rtol=0)


def test_a_padded_grid_gives_the_hidden_states_of_packed_texts(encoder: Encoder) -> None:
    """With masked tokens inside the texts, ablated heads, and padding beyond the positions."""
    config = encoder.config
    batch = packed(encoder, [(), (2,), (4,), (1, 32)])  # each token has a key, also if causal
    mask = torch.rand(len(LENGTHS), config.num_hidden_layers, config.num_attention_heads)
    wide = widen(batch, len(LENGTHS), 40)
    grids = padded(wide, config.pad_token_id)
    inputs = (torch.from_numpy(grids[name]) for name in GRID_INPUTS)
    with torch.no_grad():
        found = grid_states(encoder, encoder.relative_parameters(), *inputs, mask)
        expected = encoder(PackedBatch.of(batch), mask).hidden_states
    for state, reference in zip(found, expected, strict=True):
        atol = 1e-5 * reference.abs().max().item()
        rows = state.flatten(0, 1)[wide.packed_index]
        torch.testing.assert_close(rows, reference, atol=atol, rtol=0)


@pytest.mark.parametrize("kind", ["attention", "value_norms", "head_scores"])
def test_graphs_of_heads_equal_pytorchs(encoder: Encoder, expected: Any, kind: HeadGraph) -> None:
    """For any heads and any number of tokens, by one graph without weights for all layers."""
    batch, output = expected
    graph, of_torch = weightless_graphs(encoder.config)[kind], TorchEncoderHeads(encoder)
    exported, parameters = graph.export(), head_parameters(encoder)
    assert signature_mismatches(exported.graph, graph.signature) == []
    assert max((len(own.raw_data) for own in exported.graph.initializer), default=0) <= 1024
    run, start, heads = session(exported), batch.cu_seqlens[3], [2, 0]
    for layer, maps in enumerate(output.attentions):
        for tokens in (LENGTHS[3], 1):
            rows = output.hidden_states[layer][start : start + tokens].numpy()
            states = [rows[None]] * 2 if kind == "attention" else [rows]
            names = [spec.name for spec in graph.inputs]
            feed = dict(zip(names, states, strict=False))
            for parameter in names[len(states) :]:
                feed[parameter] = parameters[f"{parameter}.{layer}"][heads].numpy()
            found = run.run(None, feed)
            wanted = of_torch.run(kind, states, layer, heads, 0)
            for ours, theirs in zip(found, wanted, strict=True):
                atol = 1e-5 * np.abs(theirs).max()
                np.testing.assert_allclose(ours, theirs, atol=atol, rtol=1e-5, strict=True)
            if kind == "attention" and tokens > 1:
                np.testing.assert_allclose(found[0][0], maps[3, heads].numpy(), atol=1e-5)


def test_decompositions_equal_pytorchs(
    encoder: Encoder, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer by layer, by the keys and shapes that a service finds without PyTorch."""
    monkeypatch.undo()  # DeBERTa's graph needs a second trace
    batch, output = expected
    start, end = batch.cu_seqlens[2:4]
    states = [state[start:end] for state in output.hidden_states]
    graphs = weightless_graphs(encoder.config)
    for name in ("decomposition", "decomposition_values"):
        save_graph(graphs[name].export(), tmp_path / GRAPHS[name])
    save_file(dict(sorted(encoder.state_dict().items())), tmp_path / WEIGHTS)
    save_file(head_parameters(encoder), tmp_path / HEADS)
    signature = {name: graph.signature for name, graph in graphs.items()}
    manifest = SimpleNamespace(config=encoder.config, signature=signature)
    artifact: Any = SimpleNamespace(manifest=manifest, path=tmp_path.joinpath)
    steps = DecompositionGraphs(HeadGraphs(artifact))
    found = by_steps(steps, encoder.config.num_hidden_layers, states[0].numpy(), rows=8)
    with torch.no_grad():
        wanted = decomposed(encoder, states[0]).numpy()
    scale = states[-1].abs().max().item()
    np.testing.assert_allclose(found, wanted, atol=2e-5 * scale)
    np.testing.assert_allclose(found[:, 1:].sum(axis=1), states[-1].numpy(), atol=2e-5 * scale)
