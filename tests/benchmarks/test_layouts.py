"""The graphs, and the service in process, accept the benchmark's inputs."""

from __future__ import annotations

import pytest

from benchmarks.harness.servers import artifact_of
from benchmarks.harness.service import InProcess
from benchmarks.layouts import LENGTHS, batch_of
from model.artifact.manifest import load_artifact


@pytest.mark.slow
def test_in_process_and_the_layouts_take_what_the_service_takes():
    artifact = artifact_of("fp32")
    assert InProcess(artifact)(["one text", "and another"]) > 0
    inputs = load_artifact(artifact).manifest.signature["encoder"].inputs
    feed = batch_of(LENGTHS)
    assert list(feed) == [spec.name for spec in inputs]
    assert [array.dtype.name for array in feed.values()] == [spec.dtype for spec in inputs]
