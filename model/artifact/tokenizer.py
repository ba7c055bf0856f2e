"""The tokenizer of an artifact, to the last bit of its scores."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models

from model.tokenization.growth import check_growth


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`, with its scores as they are written.

    The library's own reading of a decimal number may be the next one to it: of a quarter of those
    from -9 to -16, where most pieces are. Where two ways of cutting a word are equally likely, as
    "!" "!!" and "!!" "!", that would choose between them, and otherwise than where the scores came
    from. SentencePiece's scores, of four bytes, hardly suffer; those that the library trained do.

    Raises:
        CheckpointError: its rules make texts longer without a reasonable bound.

    """
    content = json.loads(path.read_bytes())
    check_growth(str(path), content)  # before the library normalises added tokens
    tokenizer = Tokenizer.from_file(str(path))
    if isinstance(tokenizer.model, models.Unigram):
        model = content["model"]
        pieces = [(piece, score) for piece, score in model["vocab"]]
        tokenizer.model = models.Unigram(pieces, model["unk_id"], model["byte_fallback"])
    return tokenizer


def copy_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer of the same parts, whose truncation and padding are its own."""
    copied = Tokenizer.from_str(tokenizer.to_str())
    copied.model = tokenizer.model
    return copied
