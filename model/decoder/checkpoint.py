"""A Hugging Face checkpoint folder (safetensors) to the `Decoder` beside its encoder."""

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

    An output map that equals the word embedding is tied to it, and one that differs is not,
    whatever `tie_word_embeddings` is, as transformers has it; a bias of the output map that is
    missing is zero.

    Args:
        folder: with the config and the weights.
        encoder: the config of the checkpoint's encoder.

    Returns:
        None for a checkpoint of an encoder alone.

    Raises:
        ConfigError: `config.json` is missing, invalid or not supported.
        CheckpointError: weights are missing, damaged, or do not fit the config.

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
    """The decoder back from an artifact's weights, which carry its own keys.

    Raises:
        CheckpointError: the file is damaged or does not fit the config.

    """
    return build_decoder(config, stored_tensors(path), source=str(path))


def build_decoder(config: DecoderConfig, tensors: dict[str, Tensor], source: str) -> Decoder:
    """A decoder that holds exactly these tensors.

    Args:
        config: what the decoder is.
        tensors: its parameters, by its own keys.
        source: where they come from, for the report.

    Raises:
        CheckpointError: names all keys that are missing, unexpected, mis-shaped or not finite.

    """
    return build(lambda: Decoder(config), config.layers, tensors, f"{source} (decoder)")


def _equal(words: Tensor, output: Tensor) -> bool:
    return words.shape == output.shape and bool((words == output).all())
