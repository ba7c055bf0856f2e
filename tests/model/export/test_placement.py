"""Artifacts in their place, complete and verified: serving-only ones, and those of towers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, CLIPModel, SiglipModel

import model.numerics.comparison
from model.artifact.manifest import (
    DECODER_WEIGHTS,
    FLOAT_WEIGHTS,
    MANIFEST,
    TOKENIZER,
    VISION,
    WEIGHTS,
    Artifact,
    load_artifact,
    place,
)
from model.artifact.mapped import mapped_tensors
from model.artifact.signature import DECODER_KINDS
from model.artifact.vectors import TextVectors
from model.artifact.verification import VerificationRecord
from model.config.encoder import patches_of
from model.config.precision import Precision
from model.errors import ArtifactError, CheckpointError
from model.export import exporter
from model.export.exporter import export
from model.export.samples import fill_up
from model.export.serving import serving_copy
from model.images.processing import patch_rows
from model.numerics.batch import pack
from model.numerics.comparison import Tolerance
from model.numerics.pooling import TextPooling
from model.runtimes.capabilities import Decoder, capability
from model.runtimes.contract import Heads
from model.runtimes.registry import load_runtime
from model.tokenization.vocabulary import model_ids, read_tokenizer
from tests.model.checkpoints import edit_weights
from tests.model.runtimes.test_onnx import batch_of
from tests.model.tower_checkpoints import clip, save_towers

Build = Callable[[Path], None]


@pytest.fixture
def build(tiny_artifact: Artifact) -> Build:
    """Copy graphs that were exported before."""

    def copy(folder: Path) -> None:
        shutil.copytree(tiny_artifact.folder, folder, dirs_exist_ok=True)

    return copy


def as_it_was(artifact: Artifact) -> VerificationRecord:
    return artifact.manifest.verification


def test_an_artifact_that_fails_its_verification_comes_to_its_place(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = dict.fromkeys(("hidden", "attention", "values", "pooled"), Tolerance(0.0, 0.0, 0.0))
    monkeypatch.setitem(model.numerics.comparison.TOLERANCES, "fp32", nothing)
    reported: list[str] = []

    def verify(artifact: Artifact) -> VerificationRecord:
        return exporter._verify(artifact, "cpu", reported.append)

    (tmp_path / "out").mkdir()  # an empty folder counts as none
    artifact = place(tmp_path / "out", build, verify)
    assert load_artifact(tmp_path / "out") == artifact
    assert not artifact.passed
    assert reported[-1] == f"verification FAILED: {artifact.manifest.verification.failed}"
    assert " tensors, first hidden state 0: max abs diff " in reported[-1]


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").touch()
        raise ArtifactError("no room")

    with pytest.raises(ArtifactError, match="no room"):
        place(tmp_path / "below" / "out", build, as_it_was)
    assert list((tmp_path / "below").iterdir()) == []


def test_a_place_that_is_taken_meanwhile(build: Build, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def slow(folder: Path) -> None:
        build(folder)
        out.mkdir()
        (out / "other").touch()

    with pytest.raises(ArtifactError, match="was taken while this export ran"):
        place(out, slow, as_it_was)
    assert list(tmp_path.rglob("*")) == [out, out / "other"]
    for taken in (out, out / "other"):
        with pytest.raises(ArtifactError, match="exists and is not an empty folder"):
            place(taken, build, as_it_was)
    assert list(tmp_path.rglob("*")) == [out, out / "other"]


LENGTHS = [5, 2]


def float_bytes(folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in FLOAT_WEIGHTS if (folder / name).exists())


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_it_serves_the_same(
    exported: Callable[..., Artifact],
    small_checkpoint: Path,
    tmp_path: Path,
    precision: Precision,
) -> None:
    whole = exported(small_checkpoint, "small", precision)
    copy = serving_copy(whole, tmp_path / "serving")
    assert load_artifact(copy.folder).manifest == copy.manifest
    left = {"files", "serving_only"}
    assert copy.manifest.model_dump(exclude=left) == whole.manifest.model_dump(exclude=left)
    assert copy.manifest.serving_only
    batch = batch_of(LENGTHS)
    layers = range(copy.manifest.config.num_hidden_layers + 1)
    both = [load_runtime(each) for each in (whole, copy)]
    whole_states, states = (each.encode(batch, [(0, n) for n in layers], [])[0] for each in both)
    for one, other in zip(whole_states, states, strict=True):
        np.testing.assert_array_equal(one, other)
    maps, own = (
        capability(each, Heads).attention(states[1], states[1], 1, [0, 1]) for each in both
    )
    np.testing.assert_array_equal(maps, own)
    products, own = (capability(each, Heads).value_products(states[1], 1, [1]) for each in both)
    np.testing.assert_array_equal(products, own)
    record = copy.manifest.files[WEIGHTS]
    assert record.serving_bytes == sum(each.nbytes for each in tensors_of(copy))
    assert record.serving_bytes == whole.manifest.files[WEIGHTS].serving_bytes
    assert precision != "int8" or float_bytes(copy.folder) < 0.95 * float_bytes(whole.folder)


def tensors_of(artifact: Artifact) -> list[np.ndarray]:
    return [*mapped_tensors(artifact.path(WEIGHTS)).values()]


def test_a_decoder_answers_too(bart_artifact: Artifact, tmp_path: Path) -> None:
    copy = serving_copy(bart_artifact, tmp_path / "serving")
    queries = np.random.default_rng(0).standard_normal((5, 24), np.float32)
    both = [capability(load_runtime(each), Decoder) for each in (bart_artifact, copy)]
    for kind in DECODER_KINDS:
        one, other = (each.heads[kind].attention(queries, queries, 1, [0, 2]) for each in both)
        np.testing.assert_array_equal(one, other)
    rows, labels = np.ones((2, 24), np.float32), np.array([3, 7])
    one, other = (each.logprobs(rows, labels) for each in both)
    np.testing.assert_array_equal(one, other)
    assert copy.path(DECODER_WEIGHTS).stat().st_size > 0


def test_it_cannot_be_made_smaller_again(tiny_artifact: Artifact, tmp_path: Path) -> None:
    copy = serving_copy(tiny_artifact, tmp_path / "serving")
    with pytest.raises(ArtifactError, match="was already exported with --serving-only"):
        serving_copy(copy, tmp_path / "again")


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
