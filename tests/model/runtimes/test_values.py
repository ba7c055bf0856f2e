"""Value products from every runtime, by float32 weights that are loaded on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from model.artifact.manifest import Artifact
from model.errors import ArtifactError
from model.runtimes.capabilities import Decoder, HeadOutputs, capability
from model.runtimes.contract import Floats
from model.runtimes.heads import GraphValues
from model.runtimes.registry import host_session, load_runtime

STATES: Floats = np.random.default_rng(0).standard_normal((9, 12), np.float32)
N, P, H = 3, 4, 12


def expected(artifact: Artifact, layer: int, heads: list[int]) -> Any:
    """Compute them in float64, from the artifact's float32 weights."""
    stored = load_file(artifact.path("weights.safetensors"))
    prefix = f"layers.{layer}.attention."
    values = STATES.astype(np.float64) @ stored[f"{prefix}value.weight"].T
    values = (values + stored[f"{prefix}value.bias"]).reshape(len(STATES), N, P)
    output = stored[f"{prefix}output.weight"].reshape(H, N, P).astype(np.float64)
    added = np.einsum("snp,hnp->snh", values, output)[:, heads]
    return np.einsum("sgh,sfh->sgf", added, added)


@pytest.mark.parametrize("heads", [[0, 1, 2], [2, 0], [1]])
@pytest.mark.parametrize("name", ["onnx", "pytorch"])
def test_products_are_of_the_heads_asked_for(
    name: Any, heads: list[int], tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = capability(load_runtime(tiny_artifact, name=name), HeadOutputs)
    for layer in (0, 1):
        wanted = expected(tiny_artifact, layer, heads)
        whole = runtime.value_products(STATES, layer, heads)
        np.testing.assert_allclose(whole, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
        for floats in (1, 2 * len(heads) * H, 8 * len(heads) * H):
            monkeypatch.setattr("model.runtimes.heads.FLOATS", floats)
            parts = runtime.value_products(STATES, layer, heads)
            np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["onnx", "pytorch"])
@pytest.mark.parametrize(("kind", "module"), [("decoder", "self_attn"), ("cross", "encoder_attn")])
def test_products_of_a_decoders_heads(
    name: Any,
    kind: Any,
    module: str,
    bart_artifact: Artifact,
    encoder_decoders: Callable[[str], Path],
) -> None:
    """In float64, by the checkpoint's own tensors; three heads of 8 features."""
    stored = load_file(encoder_decoders("bart") / "model.safetensors")
    states = np.random.default_rng(1).standard_normal((7, 24), np.float32)
    decoder = capability(load_runtime(bart_artifact, name=name), Decoder)
    for layer in (1, 0):
        prefix = f"model.decoder.layers.{layer}.{module}."
        values = states.astype(np.float64) @ stored[f"{prefix}v_proj.weight"].T
        values = (values + stored[f"{prefix}v_proj.bias"]).reshape(7, 3, 8)
        output = stored[f"{prefix}out_proj.weight"].reshape(24, 3, 8).astype(np.float64)
        for heads in ([0, 1, 2], [2, 0]):
            added = np.einsum("snp,hnp->snh", values, output)[:, heads]
            wanted = np.einsum("sgh,sfh->sgf", added, added)
            found = decoder.value_products_of(kind, states, layer, heads)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["tiny_fp16", "tiny_bf16"])
def test_other_precisions_have_the_float32_values(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    artifact: Artifact = request.getfixturevalue(fixture)
    wanted = expected(artifact, 1, [0, 1, 2])
    found = capability(load_runtime(artifact), HeadOutputs).value_products(STATES, 1, [0, 1, 2])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_nothing_is_loaded_before_the_first_call(tiny_artifact: Artifact) -> None:
    opened = []

    def session(graph: Path) -> Any:
        opened.append(graph.name)
        return host_session(graph)

    values = GraphValues(tiny_artifact, session)
    assert opened == []
    for layer in (0, 1):
        values.value_products(STATES, layer, [0])
    assert opened == ["value_norms.onnx"]


def test_damaged_parameters_are_named(artifact_copy: Path, tiny_artifact: Artifact) -> None:
    runtime = load_runtime(tiny_artifact.__class__(artifact_copy, tiny_artifact.manifest, ""))
    (artifact_copy / "heads.safetensors").write_bytes(b"damaged!!")
    with pytest.raises(ArtifactError, match=r"heads\.safetensors cannot be read"):
        capability(runtime, HeadOutputs).value_products(STATES, 0, [0])
