"""Properties of every registered runtime, and its conformance to the contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from model.artifact.manifest import Artifact, RuntimeName
from model.errors import ProviderError
from model.numerics.pooling import TextPooling
from model.runtimes.capabilities import HeadMaps, capability
from model.runtimes.contract import Floats, Runtime
from model.runtimes.onnx_device import BoundRuntime
from model.runtimes.registry import RUNTIMES, check_device, load_runtime
from tests.model.runtimes.test_onnx import LENGTHS, batch_of, rows_of, transformers_says

N, H = 3, 12


def test_every_runtime_is_registered() -> None:
    assert set(RUNTIMES) == set(get_args(RuntimeName))


def test_the_registry_imports_no_runtime() -> None:
    program = (
        "import sys, model.runtimes.registry\n"
        "print({'torch', 'onnx', 'onnxruntime', 'openvino'}.intersection(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "set()\n"


@pytest.mark.parametrize("name", ["openvino", "pytorch"])
def test_a_runtime_of_the_cpu_refuses_cuda(name: Any) -> None:
    with pytest.raises(ProviderError, match=f"{RUNTIMES[name].title} runs on the CPU only"):
        check_device(name, "cuda")


@pytest.fixture(
    scope="module",
    params=[
        "onnx",
        "pytorch",
        pytest.param("fp16", marks=pytest.mark.slow),
        pytest.param("openvino", marks=pytest.mark.slow),
    ],
)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Return each runtime, and ONNX Runtime with the device code."""
    names = {"fp16": "tiny_fp16", "openvino": "tiny_bf16"}
    fixture = names.get(request.param, "tiny_artifact")
    artifact: Artifact = request.getfixturevalue(fixture)
    return load_runtime(artifact, name="pytorch" if request.param == "pytorch" else None)


def maps_of_torch(checkpoint: Path, layer: int, queries: Floats, keys: Floats) -> Floats:
    """Return the weights of torch's own module for a layer's projections, `[N, T, S]`."""
    stored = load_file(checkpoint / "model.safetensors")
    prefix = f"encoder.layer.{layer}.attention.self"
    reference = torch.nn.MultiheadAttention(H, N, batch_first=True)
    with torch.no_grad():
        for index, role in enumerate(("query", "key")):
            rows = slice(index * H, (index + 1) * H)
            reference.in_proj_weight[rows] = stored[f"{prefix}.{role}.weight"]
            reference.in_proj_bias[rows] = stored[f"{prefix}.{role}.bias"]
        states = (torch.from_numpy(array)[None] for array in (queries, keys, keys))
        _, weights = reference(*states, average_attn_weights=False)
    found: Floats = weights[0].numpy()
    return found


@pytest.mark.parametrize(("t", "s"), [(4, 7), (7, 4), (1, 6), (6, 1), (5, 5)])
@pytest.mark.parametrize("heads", [[0, 1, 2], [2], [1, 0]], ids=str)
def test_maps_of_queries_over_other_keys_equal_torchs(
    runtime: Runtime, tiny_checkpoint: Path, heads: list[int], t: int, s: int
) -> None:
    rng = np.random.default_rng(t)
    queries, keys = (rng.standard_normal((n, H), np.float32) for n in (t, s))
    expected = maps_of_torch(tiny_checkpoint, 1, queries, keys)
    found = capability(runtime, HeadMaps).attention(queries, keys, 1, heads)
    assert found.shape == (len(heads), t, s)
    atol = 0.02 if isinstance(runtime, BoundRuntime) else 1e-5  # half precision
    np.testing.assert_allclose(found, expected[heads], atol=atol)


def test_pytorch_equals_transformers(tiny_artifact: Artifact, tiny_checkpoint: Path) -> None:
    runtime, batch = load_runtime(tiny_artifact, name="pytorch"), batch_of(LENGTHS)
    found = runtime.hidden_states(batch, [2, 0])
    asked = [TextPooling(text, 2, "mean") for text in range(len(LENGTHS))]
    cut, pooled = runtime.encode(batch, [(1, 2), (0, 0)], asked)
    expected = transformers_says(tiny_checkpoint, batch)
    for text, (rows, (hidden, _)) in enumerate(zip(rows_of(batch), expected, strict=True)):
        for ours, layer in zip(found, (2, 0), strict=True):
            np.testing.assert_allclose(ours[rows], hidden[layer], atol=1e-5)
        np.testing.assert_allclose(pooled[text], hidden[2].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(cut[0], expected[1][0][2], atol=1e-5)
    np.testing.assert_allclose(cut[1], expected[0][0][0], atol=1e-5)
