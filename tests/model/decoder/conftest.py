from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from model.decoder.decoder import Decoder
from model.encoder.encoder import Encoder
from tests.model.families.decoder_parity import SIZES, saved_pair
from tests.model.families.test_encoder_decoders import T5_SIZES

Pair = tuple[torch.nn.Module, Encoder, Decoder, Path]


@pytest.fixture(scope="session")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return transformers' model, our encoder and decoder, and the checkpoint; read only."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("bart")
    model = BartForConditionalGeneration(BartConfig(**SIZES))
    return (model, *saved_pair(model, folder), folder)


@pytest.fixture(scope="session", params=["bart", "t5"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return the models of BART, and of a T5."""
    if request.param == "bart":
        found: Pair = request.getfixturevalue("bart")
        return found
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("t5")
    model = T5ForConditionalGeneration(T5Config(**T5_SIZES, n_positions=8192))
    return (model, *saved_pair(model, folder), folder)
