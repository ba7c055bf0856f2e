"""PyTorch as a runtime; `test_registry` tests what all runtimes share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.encoder.encoder import Encoder
from model.errors import ArtifactError
from model.export.serving import serving_copy
from model.export.verify import verify
from model.runtimes.pytorch import PyTorchRuntime
from model.runtimes.registry import load_runtime
from tests.model.runtimes.test_onnx import LENGTHS, batch_of


def test_without_weights_it_is_one_line(tiny_artifact: Artifact, tmp_path: Path) -> None:
    artifact = serving_copy(tiny_artifact, tmp_path / "serving")
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch") as caught:
        load_runtime(artifact, name="pytorch")
    assert "\n" not in str(caught.value)
    with pytest.raises(ArtifactError, match=r"--serving-only, without .* PyTorch"):
        verify(artifact)
    load_runtime(artifact)  # the graphs need none of it


def test_what_no_request_changes_is_computed_at_the_start(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Projections of relative positions, tables of distances, and parameters by head."""
    runtime, states = load_runtime(tiny_artifact, name="pytorch"), np.ones((2, 12), np.float32)
    monkeypatch.delattr(Encoder, "head_parameters")
    monkeypatch.delattr("model.attention.self_attention.bucket_table")
    assert runtime.attention(states, states, 1, [2, 0]).shape == (2, 2, 2)


def test_a_head_mask_ablates_in_its_own_text(tiny_artifact: Artifact) -> None:
    runtime, batch = load_runtime(tiny_artifact, name="pytorch"), batch_of(LENGTHS)
    assert isinstance(runtime, PyTorchRuntime)
    mask = np.ones((len(LENGTHS), 2, 3), np.float32)
    mask[0, 1, 2] = 0
    (plain,) = runtime.hidden_states(batch, [2])
    (ablated,) = runtime.hidden_states(batch, [2], mask)
    first = LENGTHS[0]
    assert np.abs(plain[:first] - ablated[:first]).max() > 1e-3
    np.testing.assert_array_equal(plain[first:], ablated[first:])
