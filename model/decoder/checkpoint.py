"""Loading of a `Decoder` from a Hugging Face checkpoint folder (safetensors)."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from model.checkpoint import build, collect, stored_tensors
from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.decoder.decoder import Decoder
from model.families.family import WORDS
from model.families.registry import FAMILIES, read_decoder_config

_OUTPUT, _BIAS = "output.weight", "output_bias"


def load_decoder(folder: Path, encoder: EncoderConfig) -> Decoder | None:
    """Build the decoder of a checkpoint, in float32 and in evaluation mode.

    As in transformers, the output map is tied to the word embedding if both are equal, whatever
    `tie_word_embeddings` is. A missing bias of the output map is zero. None for a checkpoint with
    only an encoder.
    """
    family = FAMILIES.get(encoder.model_type)
    config = read_decoder_config(folder) if family and family.decoder else None
    if family is None or config is None:
        return None
    tensors = collect(folder, family, family.decoder_keys)
    words, output = tensors.get(WORDS), tensors.get(_OUTPUT)
    if output is not None and words is not None:
        config = config.model_copy(update={"tied_output": _equal(words, output)})
    if config.tied_output:
        tensors.pop(_OUTPUT, None)
    if config.output_bias and words is not None:
        bias = tensors.get(_BIAS, words.new_zeros(len(words)))
        tensors[_BIAS] = bias.reshape(-1)
    return build_decoder(config, tensors, source=str(folder))


def load_decoder_weights(path: Path, config: DecoderConfig) -> Decoder:
    """Load the decoder of an artifact's weights, which have the decoder's own keys."""
    return build_decoder(config, stored_tensors(path), source=str(path))


def build_decoder(config: DecoderConfig, tensors: dict[str, Tensor], source: str) -> Decoder:
    """Return a decoder that holds exactly these tensors."""
    return build(lambda: Decoder(config), config.layers, tensors, f"{source} (decoder)")


def _equal(words: Tensor, output: Tensor) -> bool:
    return words.shape == output.shape and bool((words == output).all())
