"""Inputs of an export: golden texts, batches, pictures, and special tokens of its tokenizers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    MarianConfig,
    MarianMTModel,
)

from model.artifact.golden import read_golden
from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER, Artifact
from model.artifact.sentence import SentenceConfig
from model.config.encoder import PatchLayout, patches_of
from model.errors import CheckpointError, ConfigError
from model.export.exporter import save_tokenizers
from model.export.samples import (
    PictureSamples,
    TextSamples,
    pack_samples,
    samples_of,
    scene,
    with_text_tokens,
)
from model.families.registry import read_config
from model.images.processing import ImageProcessing
from model.sources.overlay import as_folders
from model.sources.sentence import read_sentence
from model.tokenization.piece_tokenizer import read_ids
from model.tokenization.tokenizer import load_target_tokenizer, load_tokenizer
from tests.model.checkpoints import edit_json
from tests.model.encoder_decoders import assert_equal, transformers_says
from tests.model.piece_folders import write_marian
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder
from tests.model.tower_checkpoints import TEXT, clip, save_towers


def test_the_inputs_are_of_the_encoders_kind(
    tiny_artifact: Artifact, picture_artifact: Artifact
) -> None:
    assert isinstance(samples_of(tiny_artifact), TextSamples)
    assert isinstance(samples_of(picture_artifact), PictureSamples)


def test_pictures_are_packed_with_their_pixels(picture_artifact: Artifact) -> None:
    samples = samples_of(picture_artifact)
    for kind, count in ((samples.calibration(), 32), (samples.similarity(), 48)):
        batches = list(kind)
        assert sum(len(batch.padded_index) for batch in batches) == count
        for batch in batches:
            assert batch.pixels is not None
            assert batch.pixels.shape == (len(batch.input_ids), 588)
    generator = np.random.default_rng(0)
    parts = [samples.random(5, generator), samples.random(2, generator)]
    batch = pack_samples(parts)
    assert batch.input_ids.tolist() == [1, 2, 3, 0, 0, 1, 2]
    assert batch.pixels is not None
    assert batch.pixels[3:5].std() > 0.9
    assert not batch.pixels[5:].any()


def test_unusual_pictures_fit_into_memory_together(picture_artifact: Artifact) -> None:
    config = picture_artifact.manifest.config
    patches = patches_of(config).model_copy(update={"rows": 30, "columns": 40})
    assert picture_artifact.manifest.images is not None
    samples = PictureSamples(patches, picture_artifact.manifest.images)
    assert {len(sample.input_ids) for sample in samples.unusual(682)} == {256}
    assert {len(sample.input_ids) for sample in samples.unusual(40)} == {40}


def test_the_golden_target_is_transformers(translator: tuple[Path, Artifact]) -> None:
    checkpoint, artifact = translator
    *others, last = read_golden(artifact)
    assert others
    assert all(text.target is None and text.labels is None for text in others)
    assert last.labels is not None
    assert last.target is not None
    assert len(last.labels) == 7
    expected = transformers_says(checkpoint, last.input_ids, last.labels)
    assert_equal(last.target, expected)
    np.testing.assert_allclose(last.hidden[-1], expected.encoded[-1], atol=1e-4)
    assert len(last.target.cross_queries) == len(last.target.hidden) - 1


SHAPE = (96, 128, 3)
LAYOUT = PatchLayout(size=8, rows=2, columns=3, special_tokens=("[CLS]", "[DIST]"))
PROCESSING = ImageProcessing(
    resize=(16, 24), rescale_factor=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.5, 0.2, 0.1)
)


def test_a_scene_is_the_same_every_time_and_another_with_each_seed() -> None:
    assert np.array_equal(scene(SHAPE, 3), scene(SHAPE, 3))
    assert not np.array_equal(scene(SHAPE, 3), scene(SHAPE, 4))
    assert scene(SHAPE, 3).min() >= 0
    assert scene(SHAPE, 3).max() <= 1


def test_power_falls_with_frequency_as_in_photographs() -> None:
    """Field 1987: amplitudes of photographs fall as 1 / f, so their power falls as f⁻²."""
    powers = [np.abs(np.fft.rfft2(scene(SHAPE, seed).mean(axis=2))) ** 2 for seed in range(8)]
    across = np.mean(powers, axis=0)[0]
    frequencies = np.arange(2, 40)
    slope = np.polyfit(np.log(frequencies), np.log(across[frequencies]), 1)[0]
    assert slope == pytest.approx(-2, abs=0.7)


def test_pixels_are_normalised_and_cut_row_by_row() -> None:
    found = PictureSamples(LAYOUT, PROCESSING).unusual(99)
    black, white = (sample.pixels for sample in found[:2])
    assert black is not None
    assert black.shape == (8, 3 * 8 * 8)
    assert found[0].input_ids == [1, 2, 0, 0, 0, 0, 0, 0]
    assert not black[:2].any()
    expected = np.repeat([-1, -2, -3], 64)  # (0 − mean) / std of each channel
    np.testing.assert_allclose(black[2:], np.broadcast_to(expected, (6, 192)), rtol=1e-6)
    np.testing.assert_allclose(white[2:], np.tile(np.repeat([1, 3, 7], 64), (6, 1)), rtol=1e-6)


def test_pictures_of_a_group_resemble_each_other() -> None:
    batches = PictureSamples(LAYOUT, PROCESSING).similarity()
    pictures = np.concatenate([batch.pixels.reshape(-1, 8 * 192) for batch in batches])
    correlations = np.corrcoef(pictures)
    blends = correlations[range(0, 48, 3), range(2, 48, 3)]
    assert blends.mean() > np.median(correlations) + 0.2


END = clip().config.text_config.eos_token_id


def read(folder: Path) -> SentenceConfig:
    """Return the config of a tower, whose vectors tests/model/sources/test_towers.py compares."""
    config = read_config(folder)
    sentence = read_sentence(folder, config.max_position_embeddings, config.hidden_size)
    tokenizer = load_tokenizer(folder, config, lowercase=sentence.lowercase)
    return with_text_tokens(folder, sentence, tokenizer)


def save_clip(folder: Path, eos_token_id: int) -> None:
    tokens = {"vocab_size": END + 1, "bos_token_id": END - 1, "eos_token_id": eos_token_id}
    save_towers(CLIPTextModelWithProjection(CLIPTextConfig(**TEXT | tokens)), folder)


@pytest.mark.parametrize("eos_token_id", [END, 2], ids=["named", "highest"])
def test_a_clip_ends_texts_as_its_tokenizer_does(eos_token_id: int, tmp_path: Path) -> None:
    save_clip(tmp_path, eos_token_id)
    assert read(tmp_path).end_token_id == END


def test_a_clip_whose_tokenizer_has_another_end_token_is_refused(tmp_path: Path) -> None:
    save_clip(tmp_path, 7)
    with pytest.raises(ConfigError, match=f"pools the token 7, and the tokenizer .* with {END}"):
        read(tmp_path)
    edit_json(tmp_path / "config.json", eos_token_id="7")
    with pytest.raises(ConfigError, match="eos_token_id '7' is not a token id"):
        read(tmp_path)


def test_a_siglip_pads_texts_at_their_end(siglip_checkpoint: Path, tmp_path: Path) -> None:
    with as_folders(siglip_checkpoint) as towers:
        folder = Path(shutil.copytree(towers["text"], tmp_path / "text"))
    sentence = read(folder)
    assert (sentence.pad_token_id, sentence.max_length) == (1, TEXT["max_position_embeddings"])
    edit_json(folder / "tokenizer_config.json", padding_side="left")
    with pytest.raises(CheckpointError, match=r"pads texts at their start \(padding_side\)"):
        read(folder)


def marian(folder: Path) -> Path:
    """Write a checkpoint whose texts reach pieces without an id.

    Its sizes are the tiny BART's, so that both share graphs without weights.
    """
    write_marian(folder, lacking=120)
    size = len(read_ids(folder / "vocab.json"))
    sizes = {"d_model": 24, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 3}
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0}
    config = MarianConfig(
        vocab_size=size, max_position_embeddings=16, **sizes, **layers, **heads, **ids
    )
    torch.manual_seed(0)
    MarianMTModel(config).save_pretrained(folder)
    return folder


def test_a_targets_tokenizer_of_its_own(exported: Callable[..., Artifact], tmp_path: Path) -> None:
    checkpoint = marian(tmp_path / "marian")
    artifact = exported(checkpoint, "own-target-tokenizer")
    assert artifact.manifest.own_target_tokenizer
    saved = json.loads(artifact.path(TARGET_TOKENIZER).read_text())
    theirs = load_target_tokenizer(checkpoint, 10_000, lowercase=False)
    assert theirs is not None
    assert saved == json.loads(theirs.to_str())
    assert saved != json.loads(artifact.path(TOKENIZER).read_text())
    assert artifact.manifest.verification.passed


def test_files_are_written(tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path, "MBartTokenizer", src_lang="ro_RO", tgt_lang="en_XX")
    found = load_target_tokenizer(folder, VOCAB_SIZE, lowercase=False)
    assert found is not None
    (out := tmp_path / "out").mkdir()
    save_tokenizers(found, None, out)
    assert [path.name for path in out.iterdir()] == [TOKENIZER]
    save_tokenizers(found, found, out)
    assert (out / TARGET_TOKENIZER).read_bytes() == (out / TOKENIZER).read_bytes()
