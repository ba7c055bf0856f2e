"""Decomposition graphs on ONNX Runtime, layer by layer, against PyTorch as a whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from model.artifact.manifest import HEADS, WEIGHTS
from model.checkpoint import load_checkpoint
from model.decomposition.layers import decomposed
from model.export.graphs import head_parameters, signatures, weightless_graphs
from model.export.to_onnx import save_graph
from model.runtimes.host_graphs import DecompositionGraphs, HeadGraphs
from tests.model.decomposition.test_encoder import IDS, MODELS
from tests.model.families.parity import saved
from tests.model.runtimes.test_onnx import by_steps

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["modernbert", "gemma3"])
def test_graphs_equal_pytorch(name: str, tmp_path: Path) -> None:
    """A first layer without a norm, windows, gates, and grouped keys."""
    config, model, fields = MODELS[name]
    reference = model(config(**fields))
    encoder = load_checkpoint(saved(reference, tmp_path))
    with torch.no_grad():
        states = reference(IDS[None], output_hidden_states=True).hidden_states
        expected = decomposed(encoder, states[0][0])
    for graph in ("decomposition", "decomposition_values"):
        save_graph(weightless_graphs(encoder.config)[graph].export(), tmp_path / f"{graph}.onnx")
    save_file(dict(sorted(encoder.state_dict().items())), tmp_path / WEIGHTS)
    save_file(head_parameters(encoder), tmp_path / HEADS)
    manifest = SimpleNamespace(
        config=encoder.config,
        signature=signatures(encoder.config, "float32"),
    )
    artifact: Any = SimpleNamespace(
        manifest=manifest, folder=tmp_path, path=lambda name: tmp_path / name
    )
    graphs = DecompositionGraphs(HeadGraphs(artifact))
    found = by_steps(graphs, encoder.config.num_hidden_layers, states[0][0].numpy(), rows=8)
    scale = states[-1].abs().max().item()
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-5 * scale)
    last = states[-1][0].numpy()
    np.testing.assert_allclose(found[:, 1:].sum(axis=1), last, atol=1e-5 * scale)
