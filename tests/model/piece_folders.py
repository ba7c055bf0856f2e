"""Small tokenizers of Marian and M2M-100: SentencePiece models and a vocab.json."""

from __future__ import annotations

import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece

from model.tokenization.piece_tokenizer import read_piece_model
from tests.model.texts import MORE_TEXTS
from tests.model.tokenizer_folders import LINES

CODES = [">>fra<<", ">>deu<<", ">>zho_Hans<<"]


@functools.cache
def piece_model(kind: str = "unigram", vocab_size: int = 600, **options: Any) -> bytes:
    """Return a SentencePiece model that is always the same."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*LINES, *MORE_TEXTS[:40]]),
        model_writer=content,
        vocab_size=vocab_size,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return content.getvalue()


def write_marian(
    folder: Path, lacking: int = 30, *, separate: bool = False, **settings: Any
) -> Path:
    """Write a folder whose two sides segment differently; some pieces have no id.

    Args:
        folder: the folder to create.
        lacking: pieces of either side without an id.
        separate: whether each side has ids of its own.
        settings: content of tokenizer_config.json.

    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.spm").write_bytes(piece_model())
    (folder / "target.spm").write_bytes(piece_model(vocab_size=340))
    sides = [_pieces(folder / f"{side}.spm", lacking) for side in ("source", "target")]
    first = ["</s>", "<unk>"]
    if separate:
        for name, pieces in zip(("vocab.json", "target_vocab.json"), sides, strict=True):
            _write_ids(folder / name, [*first, "<pad>", *pieces])
    else:
        _write_ids(folder / "vocab.json", [*first, *dict.fromkeys(sum(sides, CODES)), "<pad>"])
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "marian"}))
    return folder


def write_m2m_100(folder: Path, kind: str = "bpe", **settings: Any) -> Path:
    """Write a folder with a model of a kind, and a source's and a target's language."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sentencepiece.bpe.model").write_bytes(piece_model(kind))
    pieces = _pieces(folder / "sentencepiece.bpe.model", 20)
    _write_ids(folder / "vocab.json", ["<s>", "<pad>", "</s>", "<unk>", *pieces])
    config = {"tokenizer_class": "M2M100Tokenizer", "src_lang": "fr", "tgt_lang": "de"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "m2m_100"}))
    return folder


def _pieces(path: Path, lacking: int) -> list[str]:
    """Return the pieces in an order of their own, without some of them."""
    pieces = [piece for piece, _ in read_piece_model(path).pieces]
    return random.Random(0).sample(pieces, len(pieces) - lacking)


def _write_ids(path: Path, tokens: list[str]) -> None:
    path.write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
