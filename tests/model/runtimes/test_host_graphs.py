"""Computations of runtimes on the host, by float32 weights that are loaded on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from model.artifact.manifest import Artifact
from model.errors import ArtifactError
from model.runtimes.capabilities import HeadScoring, capability
from model.runtimes.contract import Floats
from model.runtimes.heads import HostGraph
from model.runtimes.registry import host_session, load_runtime

STATES: Floats = np.random.default_rng(0).standard_normal((9, 12), np.float32)
N, P = 3, 4


def projected(artifact: Artifact, role: str, layer: int) -> NDArray[np.float64]:
    """Return a BERT's queries or keys `[N, S, P]` in float64, by the artifact's float32 weights."""
    stored = load_file(artifact.path("weights.safetensors"))
    prefix = f"layers.{layer}.attention.{role}"
    rows = STATES.astype(np.float64) @ stored[f"{prefix}.weight"].T + stored[f"{prefix}.bias"]
    return rows.reshape(len(STATES), N, P).transpose(1, 0, 2)


def assert_scores(artifact: Artifact, runtime: Any) -> None:
    for layer in (0, 1):
        queries, keys = (projected(artifact, role, layer) for role in ("query", "key"))
        scores = queries @ keys.transpose(0, 2, 1) / P**0.5
        for heads in ([0, 1, 2], [2, 0], [1]):
            found = capability(runtime, HeadScoring).head_scores(STATES, layer, heads)
            for name, wanted in (("queries", queries), ("keys", keys), ("scores", scores)):
                np.testing.assert_allclose(getattr(found, name), wanted[heads], atol=1e-5)


@pytest.mark.parametrize("name", ["onnx", "pytorch"])
def test_scores_of_the_heads_asked_for(name: Any, tiny_artifact: Artifact) -> None:
    assert_scores(tiny_artifact, load_runtime(tiny_artifact, name=name))


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["tiny_fp16", "tiny_bf16"])
def test_other_precisions_have_the_float32_scores(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    artifact: Artifact = request.getfixturevalue(fixture)
    assert_scores(artifact, load_runtime(artifact))


def test_a_graph_is_loaded_at_its_first_call_and_once(tiny_artifact: Artifact) -> None:
    opened = []

    def session(graph: Path) -> Any:
        opened.append(graph.name)
        return host_session(graph)

    graph = HostGraph(tiny_artifact, "head_scores", session)
    assert opened == []
    for layer in (0, 1):
        graph.of_heads(layer, [0])(STATES)
    assert opened == ["head_scores.onnx"]


def test_damaged_parameters_are_named(artifact_copy: Path, tiny_artifact: Artifact) -> None:
    runtime = load_runtime(Artifact(artifact_copy, tiny_artifact.manifest, ""))
    (artifact_copy / "heads.safetensors").write_bytes(b"damaged!!")
    with pytest.raises(ArtifactError, match=r"heads\.safetensors cannot be read"):
        capability(runtime, HeadScoring).head_scores(STATES, 0, [0])
