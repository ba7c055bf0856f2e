"""Loading of the PyTorch modules to export from a checkpoint folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from model.artifact.late_files import read_late_files
from model.artifact.modules import listed_modules, transformer_folder
from model.artifact.task import task_kind
from model.checkpoint import load_checkpoint
from model.config.encoder import EncoderConfig
from model.decoder.checkpoint import load_decoder
from model.decoder.decoder import Decoder
from model.encoder.encoder import Encoder
from model.export.hybrid import load_hybrid
from model.export.late_interaction import STANFORD_WEIGHT, load_token_vectors
from model.tasks.checkpoint import load_task_head
from model.tasks.head import TaskModule
from model.tokenization.tokenizer import add_markers


class Modules(NamedTuple):
    """Modules of a checkpoint to export."""

    encoder: Encoder
    head: TaskModule | None
    decoder: Decoder | None


def load_modules(
    checkpoint: Path, tokenizer: Tokenizer, config: EncoderConfig | None = None
) -> Modules:
    """Return the encoder, the task head and the decoder of a checkpoint.

    Args:
        checkpoint: folder of the checkpoint.
        tokenizer: its tokenizer, which gets the markers of queries and documents as single tokens.
        config: config of the encoder; read from `config.json` when None.

    Raises:
        ConfigError: the folder describes something unsupported.
        CheckpointError: weights do not fit their config.

    """
    inside = transformer_folder(checkpoint)
    kind = task_kind(checkpoint)
    if kind == "hybrid":
        encoder = load_checkpoint(inside, config)
        return Modules(encoder, load_hybrid(checkpoint, tokenizer, encoder.config), None)
    if kind != "late_interaction":
        encoder = load_checkpoint(inside, config)
        head = load_task_head(checkpoint, encoder)
        return Modules(encoder, head, load_decoder(inside, encoder.config))
    add_markers(tokenizer, read_late_files(checkpoint).markers)
    apart = [STANFORD_WEIGHT] if listed_modules(checkpoint) is None else []
    encoder = load_checkpoint(inside, config, apart)
    return Modules(encoder, load_token_vectors(checkpoint, tokenizer, encoder.config), None)
