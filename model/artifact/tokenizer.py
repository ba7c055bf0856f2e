"""Tokenizers of artifacts, with bit-exact scores."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models

from model.tokenization.growth import check_growth


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, with its scores exactly as written.

    The library parses a quarter of the decimal numbers from -9 to -16, the range of most pieces, to
    an adjacent double. That would change the choice between segmentations of equal likelihood, such
    as "!" "!!" and "!!" "!". SentencePiece's four-byte scores are hardly affected; scores that the
    library has trained are.

    Raises:
        CheckpointError: its rules expand texts without a reasonable bound.

    """
    content = json.loads(path.read_bytes())
    check_growth(str(path), content)  # before the library normalises added tokens
    tokenizer = Tokenizer.from_file(str(path))
    if isinstance(tokenizer.model, models.Unigram):
        model = content["model"]
        pieces = [(piece, score) for piece, score in model["vocab"]]
        tokenizer.model = models.Unigram(pieces, model["unk_id"], model["byte_fallback"])
    return tokenizer
