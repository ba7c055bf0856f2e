"""Artifacts of a picture encoder, in each precision, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Dinov2WithRegistersModel

from model.artifact.golden import read_golden
from model.artifact.manifest import TOKENIZER, Artifact
from model.config.encoder import patches_of
from model.config.precision import Precision
from model.numerics.pooling import TextPooling
from model.runtimes.capabilities import HeadMaps, capability
from model.runtimes.pytorch import load_encoder
from model.runtimes.registry import load_runtime
from tests.model.families.picture_parity import packed_pictures

PICTURES = torch.randn(3, 3, 28, 42, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def reference(picture_checkpoint: Path) -> Dinov2WithRegistersModel:
    model = Dinov2WithRegistersModel.from_pretrained(
        picture_checkpoint, attn_implementation="eager", dtype=torch.float32
    )
    found: Dinov2WithRegistersModel = model.eval()
    return found


def test_the_artifact_has_processing_in_place_of_a_tokenizer(picture_artifact: Artifact) -> None:
    manifest = picture_artifact.manifest
    assert manifest.images is not None
    assert manifest.images.crop == (28, 42)
    assert TOKENIZER not in manifest.file_names
    assert (manifest.sentence.pooling, manifest.sentence.max_length) == ("cls", 9)
    assert manifest.signature["encoder"].inputs[5].axes == ("tokens", 588)


def test_golden_pictures_are_transformers(
    picture_artifact: Artifact, reference: Dinov2WithRegistersModel
) -> None:
    for text in read_golden(picture_artifact):
        assert text.pixels is not None
        patches = torch.from_numpy(text.pixels[3:].T)[None]  # [1, F, patches]
        picture = torch.nn.functional.fold(patches, (28, 42), 14, stride=14)
        with torch.inference_mode():
            found = reference(picture, output_hidden_states=True, output_attentions=True)
        states = (*found.hidden_states[:-1], found.last_hidden_state)
        np.testing.assert_allclose(text.hidden, torch.cat(states).numpy(), atol=1e-4)
        np.testing.assert_allclose(text.maps, torch.cat(found.attentions).numpy(), atol=1e-5)


def test_vectors_and_maps_of_the_graphs_are_transformers(
    picture_artifact: Artifact, reference: Dinov2WithRegistersModel
) -> None:
    runtime = load_runtime(picture_artifact)
    batch = packed_pictures(patches_of(picture_artifact.manifest.config), PICTURES)
    with torch.inference_mode():
        found = reference(PICTURES, output_attentions=True)
    poolings = [TextPooling(i, 2, "cls") for i in range(3)]
    states, vectors = runtime.encode(batch, [(2, 1)], poolings)
    np.testing.assert_allclose(vectors, found.pooler_output, atol=1e-5)
    maps = capability(runtime, HeadMaps).attention(states[0], states[0], 1, [2, 0])
    np.testing.assert_allclose(maps, found.attentions[1][2, [2, 0]], atol=1e-5)
    runtime.release_memory()
    runtime.warm_up(16, 9)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_every_precision_is_verified(
    exported: Callable[..., Artifact], picture_checkpoint: Path, precision: Precision
) -> None:
    artifact = exported(picture_checkpoint, "pictures", precision)
    record = artifact.manifest.verification
    assert record.failed is None
    assert (record.similarity is None) == (precision == "fp16")
    runtime, encoder = load_runtime(artifact), load_encoder(artifact)
    batch = packed_pictures(patches_of(encoder.config), PICTURES)
    runtime.warm_up(16, 9)
    (found,), _ = runtime.encode(batch, [(1, 2)], [])
    (alone,), _ = runtime.encode(
        packed_pictures(patches_of(encoder.config), PICTURES[1:2]), [(0, 2)], []
    )
    np.testing.assert_allclose(found, alone, atol=1e-5 if precision != "fp16" else 1e-2)
