"""Graph of a layer's parts on ONNX Runtime, against the states of transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from model.artifact.layer_parts import LayerStep
from model.artifact.manifest import HEADS, WEIGHTS
from model.checkpoint import load_checkpoint
from model.export.graphs import head_parameters, signatures
from model.export.layer_parts import save_layer_parts
from model.runtimes.layer_parts import GraphLayerParts
from model.runtimes.registry import host_session
from tests.model.decomposition.test_encoder import IDS, MODELS
from tests.model.families.parity import saved

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["modernbert", "gemma3", "deberta"])
def test_each_step_gives_the_next_state(name: str, tmp_path: Path) -> None:
    """A first layer without a norm, windows, gates, grouped keys, four norms, and positions."""
    config, model, fields = MODELS[name]
    reference = model(config(**fields))
    encoder = load_checkpoint(saved(reference, tmp_path))
    with torch.no_grad():
        states = [
            state[0].numpy()
            for state in reference(IDS[None], output_hidden_states=True).hidden_states
        ]
    save_layer_parts(encoder.config, tmp_path)
    save_file(dict(sorted(encoder.state_dict().items())), tmp_path / WEIGHTS)
    with torch.no_grad():
        save_file(head_parameters(encoder), tmp_path / HEADS)
    signature = signatures(encoder.config, "float32")
    manifest = SimpleNamespace(config=encoder.config, signature=signature, serving_only=False)
    artifact: Any = SimpleNamespace(
        manifest=manifest, folder=tmp_path, path=lambda name: tmp_path / name
    )
    graph = GraphLayerParts(artifact, host_session)
    heads = encoder.config.num_attention_heads
    mask = np.ones(heads, np.float32)
    for layer, entering in enumerate(states[:-1]):
        patch = np.zeros((heads, len(entering), encoder.config.head_size), np.float32)
        found = graph.layer_parts(LayerStep(entering, layer, mask, patch))
        scale = np.abs(states[layer + 1]).max()
        np.testing.assert_allclose(found.state, states[layer + 1], rtol=0, atol=2e-5 * scale)
