"""Capabilities that artifacts declare, their runtimes, and the errors for lacking ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact, Manifest, RuntimeName
from model.errors import ModelError
from model.export.serving import serving_copy
from model.export.static_embedding import export_static
from model.runtimes import capabilities
from model.runtimes.capabilities import (
    Decoder,
    Decomposition,
    HeadMaps,
    HeadOutputs,
    HeadScoring,
    TaskHead,
    capability,
    declared,
    find,
    lacking,
    lacking_weights,
)
from model.runtimes.registry import load_runtime
from tests.model.static_checkpoints import write_static

EVERY = (HeadMaps, HeadOutputs, HeadScoring, Decomposition, Decoder, TaskHead)
OF_ENCODERS = {HeadMaps, HeadOutputs, HeadScoring, Decomposition}
STATIC = (
    "this model is a static embedding, a table without layers and heads, which gives one vector a "
    "token alone, not "
)
SERVING = "this artifact was exported with --serving-only, without the float32 weights that "
WHOLE = " needs: serve an export without --serving-only"


def assert_kept(artifact: Artifact, kinds: set[type], name: RuntimeName | None = None) -> None:
    """Assert that an artifact declares these capabilities, and that its runtime has the same."""
    runtime = load_runtime(artifact, name=name)
    assert declared(artifact.manifest) == kinds
    assert {kind for kind in EVERY if find(runtime, kind)} == kinds
    for kind in EVERY:
        assert (lacking(artifact.manifest, kind) is None) == (kind in kinds)


def test_every_capability_is_listed() -> None:
    protocols = {
        value
        for value in vars(capabilities).values()
        if isinstance(value, type) and value.__module__ == capabilities.__name__
    }
    assert protocols == set(EVERY)


@pytest.mark.parametrize("name", ["onnx", "pytorch"])
def test_an_encoder_has_what_it_declares(tiny_artifact: Artifact, name: RuntimeName) -> None:
    assert_kept(tiny_artifact, OF_ENCODERS, name)


@pytest.mark.slow
@pytest.mark.parametrize("fixture", ["tiny_fp16", "tiny_bf16"])
def test_other_precisions_have_the_same(fixture: str, request: pytest.FixtureRequest) -> None:
    assert_kept(request.getfixturevalue(fixture), OF_ENCODERS)


@pytest.mark.parametrize("name", ["onnx", "pytorch"])
def test_a_decoder_is_another(bart_artifact: Artifact, name: RuntimeName) -> None:
    assert_kept(bart_artifact, OF_ENCODERS | {Decoder}, name)


@pytest.mark.slow
def test_a_decoder_on_a_device(
    exported: Callable[..., Artifact], encoder_decoders: Callable[[str], Path]
) -> None:
    artifact = exported(encoder_decoders("bart"), "bart", "fp16")
    assert_kept(artifact, OF_ENCODERS | {Decoder})


@pytest.mark.parametrize("name", ["onnx", "pytorch"])
def test_a_task_head_is_another(late_artifact: Artifact, name: RuntimeName) -> None:
    assert_kept(late_artifact, OF_ENCODERS | {TaskHead}, name)


def test_a_serving_only_artifact_lacks_what_needs_its_weights(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    artifact = serving_copy(tiny_artifact, tmp_path / "serving")
    assert_kept(artifact, OF_ENCODERS - {Decomposition})
    manifest = artifact.manifest
    assert lacking(manifest, Decomposition) == f"{SERVING}a decomposition{WHOLE}"
    assert lacking_weights(manifest) == f"{SERVING}PyTorch{WHOLE}"
    assert lacking_weights(manifest, "a test") == f"{SERVING}a test{WHOLE}"
    assert lacking_weights(tiny_artifact.manifest) is None


def test_a_static_embedding_has_none(tmp_path: Path) -> None:
    artifact = export_static(write_static(tmp_path / "a"), tmp_path / "out", "a").artifact
    assert_kept(artifact, set())
    manifest = artifact.manifest
    for kind, noun in (
        (HeadMaps, "attention weights"),
        (HeadOutputs, "what a head adds"),
        (HeadScoring, "what a head compares"),
        (Decomposition, "shares of input tokens"),
    ):
        assert lacking(manifest, kind) == f"{STATIC}{noun}: serve a transformer encoder"
    says = lacking_weights(manifest)
    assert says == f"{STATIC}what PyTorch computes with: serve a transformer encoder"


def test_checkpoints_without_a_part(tiny_artifact: Artifact) -> None:
    manifest: Manifest = tiny_artifact.manifest
    assert lacking(manifest, Decoder) == (
        "the artifact has no decoder: export a checkpoint that has one, such as a MarianMTModel"
    )
    assert lacking(manifest, TaskHead) == (
        "the artifact has no task head to score with: export a checkpoint that has one, such as "
        "a …ForSequenceClassification"
    )


def test_a_runtime_without_a_capability_raises(tiny_artifact: Artifact) -> None:
    with pytest.raises(ModelError, match="the artifact does not declare Decoder"):
        capability(load_runtime(tiny_artifact), Decoder)
