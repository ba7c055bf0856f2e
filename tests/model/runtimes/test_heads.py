"""Heads' parameters for the attention graph, against the checkpoint's own tensors."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from model.artifact.manifest import HEADS, Artifact
from model.errors import ArtifactError
from model.runtimes.host_graphs import HeadParameters

N, P, H = 3, 4, 12


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("heads", [[0, 1, 2], [1], [2, 0], range(3), (1, 2)], ids=str)
def test_rows_of_a_projection_belong_to_consecutive_heads(
    tiny_artifact: Artifact, tiny_checkpoint: Path, layer: int, heads: list[int]
) -> None:
    stored = load_file(tiny_checkpoint / "model.safetensors")
    names = [f"{role}_{kind}" for role in ("query", "key") for kind in ("weight", "bias")]
    fed = HeadParameters(tiny_artifact).feed(names, layer, heads)
    assert list(fed) == names
    for role in ("query", "key"):
        prefix = f"encoder.layer.{layer}.attention.self.{role}"
        for kind, shape in (("weight", (N, P, H)), ("bias", (N, P))):
            expected = stored[f"{prefix}.{kind}"].reshape(shape)[list(heads)]
            np.testing.assert_array_equal(fed[f"{role}_{kind}"], expected, strict=True)


def test_a_file_that_cannot_be_read_is_named(tiny_artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / HEADS).write_bytes(b"not safetensors")
    with pytest.raises(ArtifactError, match=HEADS):
        HeadParameters(dataclasses.replace(tiny_artifact, folder=tmp_path))
