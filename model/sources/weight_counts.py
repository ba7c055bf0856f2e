"""Number of weights of a checkpoint, by its config alone. Without torch.

Notation: H hidden size, N heads of size p, K key and value heads.
"""

from __future__ import annotations

from pathlib import Path

from model.artifact.modules import transformer_folder
from model.config.encoder import EncoderConfig
from model.families.registry import parse_config, read_config, read_decoder_config, read_fields
from model.families.towers import towers


def weight_count(checkpoint: Path) -> int:
    """Return the number of weights in the matrices of an encoder and its decoder.

    Biases and norms are left out, and word embeddings count once.

    Raises:
        ConfigError: the config cannot be read.

    """
    folder = transformer_folder(checkpoint)
    if parts := towers(read_fields(folder)):
        return sum(_of_encoder(parse_config(own)) for own in parts.values())
    decoder = read_decoder_config(folder)
    of_decoder = _of_layers(decoder.layers, attentions=2) if decoder else 0
    return _of_encoder(read_config(folder)) + of_decoder


def _of_encoder(config: EncoderConfig) -> int:
    table = config.embeddings.positions != "none"
    rows = config.vocab_size + (config.max_position_embeddings if table else 0)
    rows += config.pixel_features
    return _of_layers(config) + rows * (config.embeddings.size or config.hidden_size)


def _of_layers(config: EncoderConfig, attentions: int = 1) -> int:
    """Return the number of weights in the matrices of layers.

    Args:
        config: config of the layers.
        attentions: number of attentions of a layer, which are 2 in a decoder.

    """
    hidden = config.hidden_size
    queries = config.num_attention_heads * config.head_size
    keys = config.num_key_value_heads * config.head_size
    attention = 2 * hidden * (queries + keys)  # W_Q and W_O are [H, N p], W_K and W_V [H, K p]
    feed_forward = (3 if config.layer.gated else 2) * hidden * config.intermediate_size
    return config.layer_groups * (attentions * attention + feed_forward)
