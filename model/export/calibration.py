"""Texts for calibration (ranges of activations), and texts for comparing vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from model.numerics.batch import Batch, pack
from model.tokenization.vocabulary import model_ids

TEXTS = Path(__file__).with_name("calibration.txt")
SIMILARITY_TEXTS = Path(__file__).with_name("similarity.txt")
"""File of texts that int8 is not calibrated with, in groups with partly equal meaning."""
_BATCH = 16


def calibration_batches(
    tokenizer: Tokenizer, max_length: int, segments: int = 1, *, long: bool = True
) -> Iterator[Batch]:
    """Yield the tokenized lines of `calibration.txt`, with `long` also one text of all lines.

    Texts are truncated to `max_length` tokens; all tokens of a text may have one of `segments`.
    """
    lines = TEXTS.read_text(encoding="utf-8").splitlines()
    texts = [*lines, " ".join(lines)] if long else lines
    return batches_of(texts, tokenizer, max_length, segments)


def similarity_batches(tokenizer: Tokenizer, max_length: int, segments: int = 1) -> Iterator[Batch]:
    """Yield the tokenized lines of `similarity.txt`; arguments as for `calibration_batches`."""
    lines = SIMILARITY_TEXTS.read_text(encoding="utf-8").splitlines()
    return batches_of(lines, tokenizer, max_length, segments)


def batches_of(
    lines: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    segments: int = 1,
) -> Iterator[Batch]:
    """Yield texts in batches, without texts that have no tokens.

    With several segments, the texts of the first batch are of segment 0, the second's of 1, and so
    on.
    """
    tokenizer.enable_truncation(max_length)
    encodings = tokenizer.encode_batch(list(lines))
    tokenizer.no_truncation()
    texts = [
        (model_ids(tokenizer, encoding), encoding.type_ids)
        for encoding in encodings
        if encoding.ids
    ]
    for number, start in enumerate(range(0, len(texts), _BATCH)):
        batch = pack(texts[start : start + _BATCH])
        if segments > 1:
            batch.token_type_ids[:] = number % segments
        yield batch
