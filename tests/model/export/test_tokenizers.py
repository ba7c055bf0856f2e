"""Tokenizers of an artifact, against transformers' AutoTokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER, Artifact
from model.decoder.checkpoint import load_decoder
from model.decoder.decoder import Decoder
from model.errors import CheckpointError
from model.export.exporter import save_tokenizers, target_tokenizer
from model.families.registry import read_config
from model.tokenization.piece_tokenizer import read_ids
from model.tokenization.tokenizer import load_target_tokenizer
from tests.model.piece_folders import write_marian
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder


@pytest.fixture
def decoder(encoder_decoders: Callable[[str], Path]) -> Decoder:
    """Return the decoder of the tiny BART, whose vocabulary has 60 words."""
    folder = encoder_decoders("bart")
    found = load_decoder(folder, read_config(folder))
    assert found is not None
    return found


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


def test_without_a_decoder_there_is_none(tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path, "MBartTokenizer", src_lang="ro_RO", tgt_lang="en_XX")
    assert target_tokenizer(folder, None, lowercase=False) is None


def test_targets_of_the_same_tokenizer(decoder: Decoder, tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path, "T5Tokenizer")
    assert target_tokenizer(folder, decoder, lowercase=False) is None


def test_ids_fit_the_decoder(decoder: Decoder, tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path, "MBartTokenizer", tgt_lang="ro_RO")
    with pytest.raises(CheckpointError, match="the encoder's vocabulary holds 60"):
        target_tokenizer(folder, decoder, lowercase=False)


def test_files_are_written(tmp_path: Path) -> None:
    folder = write_tokenizer_folder(tmp_path, "MBartTokenizer", src_lang="ro_RO", tgt_lang="en_XX")
    found = load_target_tokenizer(folder, VOCAB_SIZE, lowercase=False)
    assert found is not None
    (out := tmp_path / "out").mkdir()
    save_tokenizers(found, None, out)
    assert [path.name for path in out.iterdir()] == [TOKENIZER]
    save_tokenizers(found, found, out)
    assert (out / TARGET_TOKENIZER).read_bytes() == (out / TOKENIZER).read_bytes()
