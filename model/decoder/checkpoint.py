"""A stand-in of the loading of a checkpoint's decoder."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from model.config import EncoderConfig
from model.decoder.config import DecoderConfig
from model.decoder.decoder import Decoder


def load_decoder(folder: Path, encoder: EncoderConfig) -> Decoder | None:
    del encoder
    path = folder / "stand-in.json"
    if not path.is_file():
        return None
    torch.manual_seed(5)
    decoder = Decoder(DecoderConfig.model_validate_json(path.read_bytes()))
    return decoder.eval().requires_grad_(False)


def load_decoder_weights(path: Path, config: DecoderConfig) -> Decoder:
    decoder = Decoder(config)
    decoder.load_state_dict(load_file(path))
    return decoder.eval().requires_grad_(False)
