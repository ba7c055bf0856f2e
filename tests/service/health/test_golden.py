"""An engine whose numbers differ from PyTorch's never serves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from model.artifact.verification import Verdict
from model.config.precision import Use
from model.errors import VerificationError
from service.app import create_app
from service.engines.contract import MapsTask, Output, Task
from service.engines.onnx import OnnxEngine
from service.engines.process import TorchEngine
from service.errors import EngineFailed
from service.health.golden import GoldenCheck
from service.settings import Settings
from tests.model.checkpoints import write_checkpoint
from tests.service.harness import AnsweringEngine, StaysOpen

Bend = Callable[[Task, Output], None]


class Bent(StaysOpen):
    """Engine on ONNX Runtime with a change in its results."""

    def __init__(self, engine: OnnxEngine, bend: Bend) -> None:
        super().__init__(engine)
        self._bend = bend

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = super().run(tasks)
        for task, output in zip(tasks, outputs, strict=True):
            self._bend(task, output)
        return outputs


def shift_hidden(task: Task, output: Output) -> None:
    if not isinstance(task, MapsTask):
        output.hidden[1] = output.hidden[1] + 0.001


def shift_map(task: Task, output: Output) -> None:
    if isinstance(task, MapsTask) and task.layer == 1:
        output.maps = np.roll(output.maps, 1, axis=0)  # the heads are swapped


def test_the_engines_agree(
    artifact: Artifact, onnx_engine: OnnxEngine, torch_engine: TorchEngine
) -> None:
    check = GoldenCheck(artifact)
    check(onnx_engine)
    check(torch_engine)


def test_the_engine_reads_the_pixels_of_golden_pictures(picture_artifact: Artifact) -> None:
    GoldenCheck(picture_artifact)(OnnxEngine(picture_artifact, "cpu", threads=1))


@pytest.mark.parametrize(
    ("bend", "says"), [(shift_hidden, "hidden 1"), (shift_map, "attention 1.0")]
)
def test_an_engine_that_lies_is_found(
    artifact: Artifact, onnx_engine: OnnxEngine, bend: Bend, says: str
) -> None:
    with pytest.raises(VerificationError, match=says) as refused:
        GoldenCheck(artifact)(Bent(onnx_engine, bend))
    assert "\n" not in str(refused.value)
    assert "disagrees with PyTorch" in str(refused.value)


def roll_pooled(task: Task, output: Output) -> None:
    if output.pooled is not None:
        output.pooled = np.roll(output.pooled, 1)


@pytest.mark.slow
def test_the_graph_of_vectors_is_tried_by_requests_of_vectors_alone(
    exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "even", hidden_size=24, num_attention_heads=3)
    half = exported(tmp_path / "even", "even-service", "fp16")
    assert "vectors" in half.manifest.signature
    engine = OnnxEngine(half, "cpu", threads=1)
    GoldenCheck(half)(engine)
    with pytest.raises(VerificationError, match="pooled"):
        GoldenCheck(half)(Bent(engine, roll_pooled))


def shift_target(task: Task, output: Output) -> None:
    if output.target is not None:
        output.target.hidden[1] = output.target.hidden[1] + 0.001


def shift_cross(task: Task, output: Output) -> None:
    if isinstance(task, MapsTask) and task.kind == "cross" and task.layer == 1:
        output.maps = np.roll(output.maps, 1, axis=0)


def test_a_decoder_is_tried_too(bart_artifact: Artifact) -> None:
    engine, check = OnnxEngine(bart_artifact, "cpu", threads=1), GoldenCheck(bart_artifact)
    check(engine)
    for bend, says in ((shift_target, "decoder_hidden 1"), (shift_cross, "cross_attention 1.0")):
        with pytest.raises(VerificationError, match=says):
            check(Bent(engine, bend))


def test_an_engine_that_answers_nonsense_is_found(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    def not_a_number(_: Task, output: Output) -> None:
        for state in output.hidden:
            state[0, 0] = np.nan

    with pytest.raises(EngineFailed, match="not finite"):
        GoldenCheck(artifact)(Bent(onnx_engine, not_a_number))


def test_the_service_does_not_start_with_it(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = OnnxEngine.run

    def lies(self: OnnxEngine, tasks: Sequence[Task]) -> list[Output]:
        outputs = honest(self, tasks)
        for task, output in zip(tasks, outputs, strict=True):
            shift_map(task, output)
        return outputs

    closed: list[OnnxEngine] = []

    def close(self: OnnxEngine) -> None:
        closed.append(self)

    monkeypatch.setattr(OnnxEngine, "run", lies)
    monkeypatch.setattr(OnnxEngine, "close", close)
    with pytest.raises(VerificationError):
        create_app(Settings(device="cpu", threads=1), [artifact])
    assert len(closed) == 1  # otherwise a process of its own would stay


def test_what_is_served_unverified_on_purpose_is_not_tried(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    unverified = failing(artifact, "vectors", "heads")
    GoldenCheck(unverified)(Bent(onnx_engine, shift_map))


def test_a_use_that_failed_is_not_tried_and_the_other_is(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    GoldenCheck(failing(artifact, "heads"))(Bent(onnx_engine, shift_map))
    with pytest.raises(VerificationError, match="attention"):
        GoldenCheck(failing(artifact, "vectors"))(Bent(onnx_engine, shift_map))


def failing(artifact: Artifact, *uses: Use) -> Artifact:
    """Return the artifact with a manifest in which some uses failed."""
    failed = dict.fromkeys(uses, Verdict(passed=False))
    verification = artifact.manifest.verification.model_copy(update=failed)
    manifest = artifact.manifest.model_copy(update={"verification": verification})
    return dataclasses.replace(artifact, manifest=manifest)


def test_an_engine_without_a_model_only_has_to_answer(artifact: Artifact) -> None:
    def fails(tasks: Sequence[Task]) -> None:
        raise RuntimeError

    config = artifact.manifest.config
    GoldenCheck(artifact)(AnsweringEngine(lambda _: None, config))
    with pytest.raises(RuntimeError):
        GoldenCheck(artifact)(AnsweringEngine(fails, config))
