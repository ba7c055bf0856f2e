"""Tokenizers that return the segments of a pair for the model."""

from __future__ import annotations

from pathlib import Path

from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.tokenization.classes import input_names
from model.tokenization.files import TokenizerFiles


def reading_segments(config: EncoderConfig, folder: Path) -> EncoderConfig:
    """Return the config, which reads segments if the folder's tokenizer returns them.

    An encoder whose texts have one of several segments reads them, whatever the tokenizer returns.

    Raises:
        CheckpointError: the folder has no supported tokenizer.

    """
    reads = config.text_segments > 1 or not config.type_vocab_size or hands_segments(folder)
    return config.model_copy(update={"reads_segments": bool(reads)})


def hands_segments(folder: Path) -> bool:
    """Return whether the tokenizer that transformers builds from a folder returns `token_type_ids`.

    `model_input_names` of `tokenizer_config.json` decides. Without it the class does: BERT's and
    DeBERTa-v2's return them; ALBERT's, DistilBERT's and a bare tokenizer.json do not.
    """
    files = TokenizerFiles.read(folder)
    if "model_input_names" not in files.settings:
        return "token_type_ids" in input_names(files)
    names = files.settings["model_input_names"]
    if not isinstance(names, list):
        raise CheckpointError(
            f"{folder}: model_input_names of tokenizer_config.json is {names!r}, not a list"
        )
    return "token_type_ids" in names
