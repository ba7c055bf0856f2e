"""Parts of a layer from every runtime, by float32 weights that are loaded on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from model.artifact.layer_parts import LayerStep
from model.artifact.manifest import Artifact
from model.runtimes.capabilities import LayerRecomputation, capability
from model.runtimes.contract import Floats
from model.runtimes.layer_parts import GraphLayerParts
from model.runtimes.registry import host_session, load_runtime

STATES: Floats = np.random.default_rng(0).standard_normal((9, 12), np.float32)
MASK: Floats = np.array([1, 0, 0], np.float32)
PATCH: Floats = np.zeros((3, 9, 4), np.float32)
PATCH[2] = np.random.default_rng(1).standard_normal((9, 4), np.float32)
"""Step that keeps the first of three heads, ablates the second and replaces the third."""


def step(layer: int) -> LayerStep:
    return LayerStep(STATES, layer, MASK, PATCH)


def expected(checkpoint: Path, layer: int) -> list[Any]:
    """Run transformers' own layer, with a hook on its output projection."""
    module = AutoModel.from_pretrained(checkpoint).eval().encoder.layer[layer]
    found: list[Any] = []

    def change(_: Any, given: Any) -> Any:
        split = given[0].reshape(1, 9, 3, 4) * torch.from_numpy(MASK)[:, None]
        split = split + torch.from_numpy(PATCH).transpose(0, 1)
        found.append(split[0].transpose(0, 1))
        return (split.reshape(1, 9, 12),)

    module.attention.output.dense.register_forward_pre_hook(change)
    for name in ("attention.output.dense", "attention.output", "output.dense"):
        module.get_submodule(name).register_forward_hook(lambda *given: found.append(given[2][0]))
    with torch.no_grad():
        output = module(torch.from_numpy(STATES)[None])
    return [*found, (output[0] if isinstance(output, tuple) else output)[0]]


@pytest.mark.parametrize("name", ["onnx", "pytorch"])
def test_parts_are_transformers(name: Any, tiny_artifact: Artifact, tiny_checkpoint: Path) -> None:
    runtime = load_runtime(tiny_artifact, name=name)
    for layer in (1, 0):
        found = capability(runtime, LayerRecomputation).layer_parts(step(layer))
        parts = found.heads, found.attended, found.residual, found.mlp, found.state
        for own, wanted in zip(parts, expected(tiny_checkpoint, layer), strict=True):
            np.testing.assert_allclose(own, wanted.numpy(), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["tiny_fp16", "tiny_bf16"])
def test_other_precisions_have_the_float32_parts(
    fixture: str, request: pytest.FixtureRequest, tiny_checkpoint: Path
) -> None:
    runtime = load_runtime(request.getfixturevalue(fixture))
    found = capability(runtime, LayerRecomputation).layer_parts(step(1))
    wanted = expected(tiny_checkpoint, 1)[-1].numpy()
    np.testing.assert_allclose(found.state, wanted, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "pytorch"])
def test_an_encoder_decoders_encoder_has_parts(
    name: Any, translator: tuple[Path, Artifact]
) -> None:
    """The next state equals that of transformers' encoder."""
    checkpoint, artifact = translator
    encoder = AutoModel.from_pretrained(checkpoint).eval().get_encoder()
    with torch.no_grad():
        ids = torch.arange(5, 14)[None]
        states = encoder(ids, output_hidden_states=True).hidden_states
    config = artifact.manifest.config
    recomputation = capability(load_runtime(artifact, name=name), LayerRecomputation)
    mask = np.ones(config.num_attention_heads, np.float32)
    patch = np.zeros((len(mask), 9, config.head_size), np.float32)
    for layer in range(config.num_hidden_layers):
        found = recomputation.layer_parts(LayerStep(states[layer][0].numpy(), layer, mask, patch))
        np.testing.assert_allclose(found.state, states[layer + 1][0], rtol=0, atol=1e-4)


def test_nothing_is_loaded_before_the_first_step(tiny_artifact: Artifact) -> None:
    opened = []

    def session(graph: Path) -> Any:
        opened.append(graph.name)
        return host_session(graph)

    parts = GraphLayerParts(tiny_artifact, session)
    assert opened == []
    for layer in (0, 1):
        parts.layer_parts(step(layer))
    assert opened == ["layer_parts.onnx"]
