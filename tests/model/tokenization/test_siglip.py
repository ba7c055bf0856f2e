"""SigLIP's tokenizer against transformers' own over SentencePiece."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import SiglipTokenizer

from model.errors import CheckpointError
from tests.model.piece_folders import piece_model
from tests.model.texts import MORE_TEXTS, TEXTS
from tests.model.tokenizer_oracle import assert_pieces_equal_transformers

EXCEPTIONS = ("</s>", "<unk>", "ΟΔΥΣΣΕΥΣ")
"""Parts of texts that differ: special tokens inside a text, and a capital sigma at a word's end."""


def write(folder: Path, **options: object) -> Path:
    path = folder / "spiece.model"
    path.write_bytes(piece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **options))
    SiglipTokenizer(str(path)).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "siglip"}')
    return folder


def test_texts_are_canonical(tmp_path: Path) -> None:
    texts = [
        text for text in (*TEXTS, *MORE_TEXTS) if not any(token in text for token in EXCEPTIONS)
    ]
    own = [" hello", "! hello world ", "a_b-c's", "İstanbul", "under▁score"]
    tokenizer = assert_pieces_equal_transformers(write(tmp_path), [*texts, *own])
    assert tokenizer.encode("A cat.").ids == tokenizer.encode("  a CAT ").ids


def test_a_model_that_keeps_spaces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not collapse spaces"):
        assert_pieces_equal_transformers(write(tmp_path, remove_extra_whitespaces=False))
