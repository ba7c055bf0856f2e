"""Typical texts for finding the ranges of activations (see `model.export.quantization`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from model.artifact.batch import Batch, pack
from model.tokenization.vocabulary import model_ids

TEXTS = Path(__file__).with_name("calibration.txt")
_BATCH = 16


def calibration_batches(tokenizer: Tokenizer, max_length: int) -> Iterator[Batch]:
    """The lines of `calibration.txt`, tokenised and cut, then all of them joined to one long text.

    Args:
        tokenizer: the checkpoint's.
        max_length: the most tokens of one text.

    """
    lines = TEXTS.read_text(encoding="utf-8").splitlines()
    tokenizer.enable_truncation(max_length)
    encodings = tokenizer.encode_batch([*lines, " ".join(lines)])
    tokenizer.no_truncation()
    texts = [
        (model_ids(tokenizer, encoding), encoding.type_ids)
        for encoding in encodings
        if encoding.ids
    ]
    for start in range(0, len(texts), _BATCH):
        yield pack(texts[start : start + _BATCH])
