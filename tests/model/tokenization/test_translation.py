"""Tokenizers of M2M-100, Marian and SigLIP, against transformers' own over SentencePiece."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
from transformers import SiglipTokenizer

from model.errors import CheckpointError
from model.tokenization.tokenizer import load_target_tokenizer
from model.tokenization.vocabulary import model_ids
from tests.model.checkpoints import edit_json
from tests.model.piece_folders import piece_model, write_m2m_100, write_marian
from tests.model.refusals import refused
from tests.model.texts import MORE_TEXTS, TEXTS
from tests.model.tokenizer_oracle import SOME_TEXTS, assert_pieces_equal_transformers


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_m2m_100(tmp_path: Path, kind: str) -> None:
    write_m2m_100(tmp_path, kind)
    assert_pieces_equal_transformers(tmp_path)
    assert_pieces_equal_transformers(tmp_path, target=True)


def test_languages_that_are_special_tokens_in_texts(tmp_path: Path) -> None:
    write_m2m_100(tmp_path, extra_special_tokens=["__af__", "__am__"], src_lang=None)
    tokenizer = assert_pieces_equal_transformers(tmp_path, [*SOME_TEXTS, "a __am__ b __en__"])
    assert tokenizer.encode("").tokens == ["__en__", "</s>"]


def target_refusal(folder: Path) -> str:
    return refused(CheckpointError, "", load_target_tokenizer, folder, 10_000, lowercase=False)


def test_a_language_is_one_of_the_models(tmp_path: Path) -> None:
    def refusal(**settings: str | None) -> str:
        return target_refusal(write_m2m_100(tmp_path, **settings))

    assert "tgt_lang of tokenizer_config.json is None; set it to" in refusal(tgt_lang=None)
    assert "tgt_lang of tokenizer_config.json is 'xx'" in refusal(tgt_lang="xx")
    assert "language_codes of tokenizer_config.json is 'x'" in refusal(language_codes="x")


CODED = [
    ">>fra<< The water.",
    ">>fra<<The water",
    ">>deu<<  two spaces",
    ">>xyz<< unknown",
    ">>x y\nz<< the ship",
    ">>fra<<",
    ">>fra<< ",
    ">>fra<< >>deu<< both",
    " >>fra<< not at the start",
    "the >>fra<< within, >>deu<<",
    ">><<",
    ">> fra <<",
    ">>fra< no code",
    "</s>>>fra<< after a token",
    "<pad> in</s> texts<unk>",
    "＜/s＞ and ＞＞fra＜＜ widened",
    "\x00\x01 \x7f\u200b\ufeff\r\n\tthe ship\r\n",
    "▁the▁ ship▁",
]


@pytest.mark.parametrize("target", [False, True], ids=["source", "target"])
@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
def test_each_side(tmp_path: Path, separate: bool, target: bool) -> None:
    write_marian(tmp_path, separate=separate)
    assert_pieces_equal_transformers(tmp_path, target=target)
    assert_pieces_equal_transformers(tmp_path, CODED, target=target)


def test_pieces_without_an_id_are_there(tmp_path: Path) -> None:
    """Otherwise the texts above would not test them."""
    tokenizer = assert_pieces_equal_transformers(write_marian(tmp_path), SOME_TEXTS)
    found = tokenizer.encode_batch(SOME_TEXTS)
    assert any(model_ids(tokenizer, encoding) != encoding.ids for encoding in found)


def test_added_tokens(tmp_path: Path) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    added = {
        "9000": {"content": "ship", "normalized": True, "special": False} | flags,
        "9001": {"content": "<x>", "normalized": False, "special": True} | flags,
    }
    write_marian(tmp_path, added_tokens_decoder=added, extra_special_tokens=["<y>"])
    texts = [*SOME_TEXTS, "the ship and<x>ships <y>"]
    assert_pieces_equal_transformers(tmp_path, texts)
    assert_pieces_equal_transformers(tmp_path, texts, target=True)


def test_offsets_are_sentencepieces(tmp_path: Path) -> None:
    tokenizer = assert_pieces_equal_transformers(write_marian(tmp_path), SOME_TEXTS)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source.spm"))
    for text in ("The river runs.", "the ship, the hill", "Water isn't 1999"):
        found = tokenizer.encode(text, add_special_tokens=False)
        pieces = theirs.encode(text, return_type="proto").pieces
        for ours, piece in zip(found.offsets, pieces, strict=True):
            # a space before the text, alone, is the first character's
            assert ours == (piece.begin, piece.end or 1)


def test_what_is_refused(tmp_path: Path) -> None:
    write_marian(tmp_path, separate=True)
    edit_json(tmp_path / "target_vocab.json", **{"<unk>": 8000})
    assert "has another id for <unk> than vocab.json" in target_refusal(tmp_path)
    (tmp_path / "target_vocab.json").unlink()
    assert "target_vocab.json is missing, the targets' vocabulary" in target_refusal(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0}))
    assert "vocabulary lacks <unk>, its unknown token" in target_refusal(tmp_path)
    (tmp_path / "target.spm").unlink()
    assert "holds no whole tokenizer: target.spm missing" in target_refusal(tmp_path)


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
