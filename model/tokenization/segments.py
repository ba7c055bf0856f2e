"""Which tokenizers hand the segments of a pair to the model."""

from __future__ import annotations

from pathlib import Path

from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.tokenization.classes import find_class
from model.tokenization.files import TokenizerFiles


def reading_segments(config: EncoderConfig, folder: Path) -> EncoderConfig:
    """The config of an encoder that reads segments where the folder's tokenizer hands them over.

    Raises:
        CheckpointError: the folder has no tokenizer that is supported.

    """
    reads = not config.type_vocab_size or hands_segments(folder)
    return config.model_copy(update={"reads_segments": reads})


def hands_segments(folder: Path) -> bool:
    """Whether the tokenizer that transformers builds from a folder returns `token_type_ids`.

    `model_input_names` of `tokenizer_config.json` decides, or else the class: BERT's and
    DeBERTa-v2's do; ALBERT's, DistilBERT's and a tokenizer.json as it stands do not.

    Raises:
        CheckpointError: the folder has no tokenizer that is supported.

    """
    files = TokenizerFiles.read(folder)
    if "model_input_names" not in files.settings:
        _, kind = find_class(files)
        return kind is not None and kind.segments
    names = files.settings["model_input_names"]
    if not isinstance(names, list):
        raise CheckpointError(
            f"{folder}: model_input_names of tokenizer_config.json is {names!r}, not a list"
        )
    return "token_type_ids" in names
