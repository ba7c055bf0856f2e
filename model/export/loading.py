"""Reading of a checkpoint folder for its export, and loading of its PyTorch modules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from model.artifact.late_files import read_late_files
from model.artifact.logit_score import read_logit_score
from model.artifact.modules import listed_modules, transformer_folder
from model.artifact.sentence import SentenceConfig
from model.artifact.task import task_kind
from model.checkpoint import load_checkpoint
from model.config.encoder import EncoderConfig
from model.decoder.checkpoint import load_decoder
from model.decoder.decoder import Decoder
from model.encoder.encoder import Encoder
from model.export.hybrid import load_hybrid
from model.export.late_interaction import STANFORD_WEIGHT, load_token_vectors
from model.export.pair_templates import pair_templates
from model.export.samples import PictureSamples, Samples, TextSamples
from model.export.text_tokens import with_text_tokens
from model.families.registry import read_config
from model.images.processing import ImageProcessing, read_processing
from model.tasks.checkpoint import load_task_head
from model.tasks.head import TaskModule
from model.tokenization.segments import reading_segments
from model.tokenization.templates import check_template
from model.tokenization.tokenizer import add_markers, load_tokenizer


@dataclass(frozen=True)
class Source:
    """Descriptions of a checkpoint, and its tokenizer."""

    inside: Path
    """Folder of the encoder's files."""
    config: EncoderConfig
    sentence: SentenceConfig
    tokenizer: Tokenizer | None
    """Tokenizer of texts; None for pictures."""
    images: ImageProcessing | None
    """Processing of pictures; None for texts."""

    @property
    def samples(self) -> Samples:
        """Inputs of the encoder for its export."""
        if self.images is not None:
            return PictureSamples(self.config, self.images)
        assert self.tokenizer is not None  # noqa: S101  # for texts
        return TextSamples(self.tokenizer, self.config, self.sentence)


def read_source(checkpoint: Path) -> Source:
    """Read everything of a checkpoint but its weights."""
    inside = transformer_folder(checkpoint)
    config = read_config(inside)
    images = read_processing(inside) if config.embeddings.patches else None
    if images is None:
        config = reading_segments(config, inside)
    sentence = SentenceConfig.from_checkpoint(
        checkpoint, config.max_position_embeddings, config.hidden_size
    )
    if images is not None:
        return Source(inside, config, sentence, None, images)
    if score := read_logit_score(checkpoint):
        templates = pair_templates(inside, score, sentence.prompts)
        sentence = sentence.model_copy(update={"pair_templates": templates})
    tokenizer = load_tokenizer(inside, config, lowercase=sentence.lowercase)
    check_template(inside, tokenizer, config, sentence.max_length)
    sentence = with_text_tokens(inside, sentence, tokenizer)
    return Source(inside, config, sentence, tokenizer, None)


class Modules(NamedTuple):
    """Modules of a checkpoint to export."""

    encoder: Encoder
    head: TaskModule | None
    decoder: Decoder | None


def load_modules(
    checkpoint: Path, tokenizer: Tokenizer | None, config: EncoderConfig | None = None
) -> Modules:
    """Return the encoder, the task head and the decoder of a checkpoint.

    Args:
        checkpoint: folder of the checkpoint.
        tokenizer: its tokenizer, which gets the markers of queries and documents as single tokens;
            None for an encoder of pictures.
        config: config of the encoder; read from `config.json` when None.

    """
    inside = transformer_folder(checkpoint)
    kind = task_kind(checkpoint)
    if tokenizer is None or kind not in ("hybrid", "late_interaction"):
        encoder = load_checkpoint(inside, config)
        head = load_task_head(checkpoint, encoder)
        return Modules(encoder, head, load_decoder(inside, encoder.config))
    if kind == "hybrid":
        encoder = load_checkpoint(inside, config)
        return Modules(encoder, load_hybrid(checkpoint, tokenizer, encoder.config), None)
    add_markers(tokenizer, read_late_files(checkpoint).markers)
    apart = [STANFORD_WEIGHT] if listed_modules(checkpoint) is None else []
    encoder = load_checkpoint(inside, config, apart)
    return Modules(encoder, load_token_vectors(checkpoint, tokenizer, encoder.config), None)
