"""Verification of expanded queries detects graphs that ignore the expansion."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.export.verify import compare_filled_up, verify
from model.numerics.comparison import TOLERANCES, Comparison, Key
from model.runtimes.onnx import OnnxRuntime
from model.runtimes.pytorch import load_encoder, load_head


def compared(artifact: Artifact) -> Comparison:
    head, comparison = load_head(artifact), Comparison()
    assert head is not None
    runtime = OnnxRuntime(artifact)
    compare_filled_up(load_encoder(artifact), head, runtime, comparison, TOLERANCES["fp32"])
    return comparison


def test_an_export_is_held_to_pytorch(late_artifact: Artifact) -> None:
    record = late_artifact.manifest.verification
    assert record.passed
    assert record.min_cosine["token_vectors"] == 1.0
    assert verify(late_artifact).comparison.inputs == record.inputs
    comparison = compared(late_artifact)
    assert (comparison.passed, comparison.inputs) == (True, 4)
    assert comparison.differences.keys() == {Key("token_vectors")}


def test_a_graph_that_attends_to_what_fills_up_fails(
    late_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = OnnxRuntime.encode

    def attending(runtime: OnnxRuntime, batch: Any, *asked: Any) -> Any:
        places = batch.padded_index
        shown = dataclasses.replace(batch, padded_index=np.where(places < -1, -1 - places, places))
        return encode(runtime, shown, *asked)

    monkeypatch.setattr(OnnxRuntime, "encode", attending)
    comparison = compared(late_artifact)
    assert not comparison.passed
    assert comparison.min_cosine("token_vectors") < 0.999
