"""Runtimes that several files hold to the same results."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from model.runtimes.contract import Resources, Runtime
from model.runtimes.registry import load_runtime


@pytest.fixture(
    scope="module",
    params=[
        "onnx",
        "pytorch",
        pytest.param("fp16", marks=pytest.mark.slow),
        pytest.param("bf16", marks=pytest.mark.slow),
        pytest.param("int8", marks=pytest.mark.slow),
    ],
)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Return each runtime of the tiny BERT; fp16 is ONNX Runtime with the device code."""
    fixtures = {"onnx": "tiny_artifact", "pytorch": "tiny_artifact"}
    name = fixtures.get(request.param, f"tiny_{request.param}")
    artifact: Artifact = request.getfixturevalue(name)
    other = "pytorch" if request.param == "pytorch" else None
    return load_runtime(artifact, Resources(threads=2), name=other)
