"""Steps of an artifact's decomposition graphs, against PyTorch's decomposition as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.artifact.decomposition import DecompositionStep
from model.artifact.manifest import Artifact
from model.decomposition.encoder import decomposed
from model.errors import ArtifactError
from model.runtimes.capabilities import Decomposition, capability
from model.runtimes.contract import Floats, Runtime
from model.runtimes.decomposition import GraphDecomposition
from model.runtimes.pytorch import load_encoder
from model.runtimes.registry import host_session, load_runtime


def by_steps(runtime: Any, layers: int, embedded: Floats, rows: int) -> Floats:
    """Return the parts `[S, P, H]` of the last hidden state, computed in blocks of rows.

    Args:
        runtime: a runtime whose artifact is whole.
        layers: L.
        embedded: hidden state 0, `[S, H]`.
        rows: number of rows of a step.

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
        found: Floats = decomposed(load_encoder(artifact), torch.from_numpy(states)).numpy()
    return found


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("name", ["onnx", "pytorch"])
def test_steps_of_any_rows_equal_the_whole(name: Any, rows: int, tiny_artifact: Artifact) -> None:
    runtime: Runtime = load_runtime(tiny_artifact, name=None if name == "onnx" else name)
    found = by_steps(runtime, 2, embedded(), rows)
    np.testing.assert_allclose(found, expected(tiny_artifact, embedded()), atol=1e-5)
    np.testing.assert_allclose(found[:, 1:].sum(axis=1), found[:, 0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["tiny_fp16", "tiny_bf16"])
def test_other_precisions_decompose_the_float32_encoder(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    artifact: Artifact = request.getfixturevalue(fixture)
    found = by_steps(load_runtime(artifact), 2, embedded(), 4)
    np.testing.assert_allclose(found, expected(artifact, embedded()), atol=1e-5)


def test_a_text_of_one_token_is_its_own(tiny_artifact: Artifact) -> None:
    found = by_steps(load_runtime(tiny_artifact), 2, embedded(1), 1)
    np.testing.assert_allclose(found[:, 1], found[:, 0], atol=1e-5)


def test_nothing_is_loaded_before_the_first_step(tiny_artifact: Artifact) -> None:
    opened = []

    def session(graph: Path) -> Any:
        opened.append(graph.name)
        return host_session(graph)

    decomposition = GraphDecomposition(tiny_artifact, session)
    assert opened == []
    for _ in range(2):
        decomposition.decompose(DecompositionStep(np.ones((1, 2, 12), np.float32), -1))
    assert opened == ["decomposition.onnx", "decomposition_values.onnx"]


def test_damaged_weights_are_named(artifact_copy: Path, tiny_artifact: Artifact) -> None:
    runtime = load_runtime(tiny_artifact.__class__(artifact_copy, tiny_artifact.manifest, ""))
    (artifact_copy / "weights.safetensors").write_bytes(b"damaged!!")
    with pytest.raises(ArtifactError, match=r"weights\.safetensors cannot be read"):
        capability(runtime, Decomposition).decompose(
            DecompositionStep(np.ones((1, 2, 12), np.float32), -1)
        )
