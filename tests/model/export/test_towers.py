"""Artifacts of two towers, against transformers' whole model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, CLIPModel, SiglipModel

from model.artifact.manifest import MANIFEST, TOKENIZER, VISION, Artifact, load_artifact
from model.artifact.tokenizer import read_tokenizer
from model.artifact.vectors import TextVectors
from model.config.encoder import patches_of
from model.errors import ArtifactError, CheckpointError
from model.export.exporter import export
from model.export.serving import serving_copy
from model.export.text_tokens import fill_up
from model.images.patches import patch_rows
from model.numerics.batch import pack
from model.numerics.pooling import TextPooling
from model.runtimes.registry import load_runtime
from model.tokenization.vocabulary import model_ids
from tests.model.checkpoints import edit_weights
from tests.model.tower_checkpoints import clip, save_towers

TEXTS = ["a photo", "The cat, a photo.", "x"]
MODELS = {"clip": CLIPModel, "siglip": SiglipModel}


@pytest.fixture(scope="module", params=MODELS)
def towers(
    request: pytest.FixtureRequest, exported: Callable[..., Artifact]
) -> tuple[Path, Artifact]:
    """Return a checkpoint and its artifact."""
    checkpoint = request.getfixturevalue(f"{request.param}_checkpoint")
    return checkpoint, exported(checkpoint, request.param)


def text_vectors(artifact: Artifact) -> list[np.ndarray]:
    """Return the artifact's vectors of `TEXTS`, by its runtime."""
    manifest = artifact.manifest
    tokenizer = read_tokenizer(artifact.path(TOKENIZER))
    fill_up(tokenizer, manifest.sentence)
    encoded = [model_ids(tokenizer, tokenizer.encode(text)) for text in TEXTS]
    last = manifest.config.num_hidden_layers
    poolings = [TextPooling(n, last, manifest.sentence.pooling) for n in range(len(TEXTS))]
    batch = pack([(ids, [0] * len(ids)) for ids in encoded])
    _, pooled = load_runtime(artifact).encode(batch, [], poolings)
    return TextVectors.of(artifact).finish(pooled)


def picture_vectors(artifact: Artifact, pictures: torch.Tensor) -> list[np.ndarray]:
    """Return the vectors of pictures `[B, 3, h, w]` by the artifact's runtime."""
    manifest = artifact.manifest
    patches, last = patches_of(manifest.config), manifest.config.num_hidden_layers
    special = len(patches.special_tokens)
    ids = [*range(1, special + 1), *[0] * (patches.tokens - special)]
    blank = np.zeros((special, patches.features), np.float32)
    pixels = [np.concatenate((blank, patch_rows(own.numpy(), patches.size))) for own in pictures]
    batch = pack([(ids, [0] * len(ids))] * len(pictures), pixels=pixels)
    poolings = [TextPooling(n, last, manifest.sentence.pooling) for n in range(len(pictures))]
    _, pooled = load_runtime(artifact).encode(batch, [], poolings)
    return TextVectors.of(artifact).finish(pooled)


def assert_near(found: Any, expected: torch.Tensor, share: float) -> None:
    atol = share * expected.abs().max().item()
    np.testing.assert_allclose(np.stack(found), expected.numpy(), atol=atol, rtol=0)


def test_vectors_and_logits_equal_transformers(towers: tuple[Path, Artifact]) -> None:
    checkpoint, artifact = towers
    dual, vision = artifact.manifest.dual, artifact.vision
    assert artifact.passed
    assert dual is not None
    assert vision is not None
    model = MODELS[dual.kind].from_pretrained(checkpoint, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    whole = {"padding": "max_length", "max_length": 20, "truncation": True}
    ids = tokenizer(TEXTS, return_tensors="pt", **whole).input_ids
    edge = patches_of(vision.manifest.config).rows * patches_of(vision.manifest.config).size
    generator = torch.Generator().manual_seed(2)
    pictures = torch.randn(3, 3, edge, edge, generator=generator)
    with torch.inference_mode():
        expected = model(input_ids=ids, pixel_values=pictures)
        texts = model.get_text_features(input_ids=ids).pooler_output
        images = model.get_image_features(pixel_values=pictures).pooler_output
    found_texts, found_images = text_vectors(artifact), picture_vectors(vision, pictures)
    assert_near(found_texts, texts, 1e-5)
    assert_near(found_images, images, 1e-5)
    units = [np.stack([v / np.linalg.norm(v) for v in own]) for own in (found_images, found_texts)]
    logits = dual.logit_scale * units[0] @ units[1].T + dual.logit_bias
    assert_near(logits, expected.logits_per_image, 1e-5)


def test_other_precisions_have_both_towers(
    clip_checkpoint: Path, exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    artifact = exported(clip_checkpoint, "clip")
    other = exported(clip_checkpoint, "clip", "int8")
    assert [tower.manifest.precision for tower in other.towers] == ["int8", "int8"]
    assert other.passed
    small = serving_copy(artifact, tmp_path / "small")
    assert [tower.manifest.serving_only for tower in small.towers] == [True, True]
    assert load_artifact(small.folder).vision == small.vision


def test_a_changed_vision_tower_is_detected(
    clip_checkpoint: Path, exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(exported(clip_checkpoint, "clip").folder, tmp_path / "a"))
    manifest = folder / VISION / MANIFEST
    manifest.write_text(manifest.read_text().replace('"clip"', '"another"'))
    with pytest.raises(ArtifactError, match="is not the exported one"):
        load_artifact(folder)
    shutil.rmtree(folder / VISION)
    with pytest.raises(ArtifactError, match="is not an artifact"):
        load_artifact(folder)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    checkpoint = save_towers(clip(), tmp_path / "a")
    edit_weights(checkpoint, logit_scale=torch.tensor(float("nan")))
    with pytest.raises(CheckpointError, match="a: logit_scale is missing, or not one finite"):
        export(checkpoint, tmp_path / "b", "clip")
