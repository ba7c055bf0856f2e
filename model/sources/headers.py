"""Number of weights of a checkpoint, and checks of safetensors headers before it is loaded.

Without torch.

Notation: H hidden size, N heads of size p, K key and value heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from model.artifact.mapped import Entry, read_header
from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.families.registry import (
    FAMILIES,
    parse_config,
    read_config,
    read_decoder_config,
    read_fields,
)
from model.families.towers import towers
from model.sources.files import transformer_folder


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

    A layer has one attention, or two in a decoder.
    """
    hidden = config.hidden_size
    queries = config.num_attention_heads * config.head_size
    keys = config.num_key_value_heads * config.head_size
    attention = 2 * hidden * (queries + keys)  # W_Q and W_O are [H, N p], W_K and W_V [H, K p]
    feed_forward = (3 if config.layer.gated else 2) * hidden * config.intermediate_size
    return config.layer_groups * (attentions * attention + feed_forward)


FULL = "name the checkpoint of its weights in fp32, bf16 or fp16"
_QUANTISED = re.compile(r"I8|U8|[IU]4|F[468]_\w+")
"""Names of types of quantised weights."""
_FLOATS = {"F64", "F32", "F16", "BF16"}
_QUANTISED_KEY = re.compile(r"\.(qweight|qzeros|weight_packed)$")
_LAYER = re.compile(r"layers\.(\d+)\.")


def check_weights(folder: Path, files: Iterable[Path], config: EncoderConfig) -> None:
    """Raise an error for weights that are damaged, quantised, or of another config.

    Loading checks whether every tensor fits.
    """
    headers = {path: _entries(path) for path in files}
    family, keys = FAMILIES[config.model_type], {key for own in headers.values() for key in own}
    family.check_supported(keys, str(folder))
    names = family.encoder_keys(keys)
    shapes: dict[str, tuple[int, ...]] = {}
    for path, entries in headers.items():
        for key, entry in entries.items():
            dtype = str(entry.dtype)
            if _QUANTISED.fullmatch(dtype) or _QUANTISED_KEY.search(key):
                raise CheckpointError(
                    f"{path} holds quantised weights ({key} is {dtype}), which are not read: "
                    f"{FULL}; export --precision int8 quantises it here"
                )
            if key in names and dtype not in _FLOATS:
                raise CheckpointError(f"{path}: {key} is {dtype}, not a float: {FULL}")
            if key in names:
                shapes[names[key]] = entry.shape
    part, size = "word", config.embeddings.size or config.hidden_size
    expected: tuple[int, ...] = (config.vocab_size, size)
    if patches := config.embeddings.patches:
        edge = patches.size
        part, expected = "patch", (config.hidden_size, patches.channels, edge, edge)
    stored = shapes.get(f"embeddings.{part}.weight")
    if stored != expected:
        problem = f"are {stored}, not {expected}" if stored else "are missing"
        raise CheckpointError(f"{folder} does not fit its config: {part} embeddings {problem}")
    layers = {match[1] for name in shapes if (match := _LAYER.match(name))}
    if len(layers) != config.layer_groups:
        raise CheckpointError(
            f"{folder} does not fit its config: there are tensors of {len(layers)} layers, "
            f"not of {config.layer_groups}"
        )


def _entries(path: Path) -> dict[str, Entry]:
    actual = path.stat().st_size
    try:
        entries = read_header(path).own
        expected = max((own.offset + own.length for own in entries.values()), default=actual)
    except (ValueError, AttributeError, TypeError, LookupError, RecursionError):
        raise CheckpointError(
            f"{path} is not a safetensors file, or its header is damaged: fetch it again"
        ) from None
    if actual != expected:
        raise CheckpointError(f"{path} has {actual} bytes instead of {expected}: fetch it again")
    return entries
