"""Tokenizers of an artifact: for the encoder's texts, and for the decoder's."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from model.artifact.access import writing
from model.artifact.manifest import TARGET_TOKENIZER, TOKENIZER
from model.decoder.decoder import Decoder
from model.tokenization.tokenizer import load_target_tokenizer


def target_tokenizer(folder: Path, decoder: Decoder | None, *, lowercase: bool) -> Tokenizer | None:
    """Return the tokenizer of the decoder's texts; None if it is the encoder's or there is none.

    Args:
        folder: folder of the checkpoint's tokenizer.
        decoder: decoder of the checkpoint.
        lowercase: whether texts are lower-cased first.

    Raises:
        CheckpointError: as for `load_target_tokenizer`.

    """
    if decoder is None:
        return None
    return load_target_tokenizer(folder, decoder.config.layers.vocab_size, lowercase=lowercase)


def save_tokenizers(source: Tokenizer | None, target: Tokenizer | None, folder: Path) -> None:
    """Write `tokenizer.json` for texts, and `target_tokenizer.json` if targets have another one."""
    for name, tokenizer in ((TOKENIZER, source), (TARGET_TOKENIZER, target)):
        if tokenizer is not None:
            with writing(path := folder / name):
                tokenizer.save(str(path), pretty=False)
