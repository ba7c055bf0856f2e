"""Sentence-T5: an encoder without its decoder, mean pooling, a map without bias, unit vectors.

Ni et al. 2022, https://arxiv.org/abs/2108.08877.
"""

from __future__ import annotations

from pathlib import Path

import torch
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers import T5Config, T5EncoderModel

from model.families.registry import read_decoder_config
from model.sources.files import transformer_folder
from model.sources.recognition import check_recognised
from tests.model.families.parity import randomized
from tests.model.sources.test_sentence import (
    HIDDEN,
    assert_equals_sentence_transformers,
    random,
    read,
    save,
)
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder


def test_vectors_are_sentence_transformers(tmp_path: Path) -> None:
    checkpoint = write_tokenizer_folder(tmp_path / "t5", "T5Tokenizer")
    config = T5Config(
        vocab_size=VOCAB_SIZE, d_model=HIDDEN, d_kv=5, d_ff=20, num_layers=2, num_heads=2
    )
    torch.manual_seed(0)
    randomized(T5EncoderModel(config)).save_pretrained(checkpoint)
    dense = random(Dense(HIDDEN, 8, bias=False, activation_function=nn.Identity()))
    modules = (Pooling(HIDDEN, "mean"), dense, Normalize())
    folder = save(checkpoint, tmp_path / "saved", *modules, max_seq_length=20)
    check_recognised(folder)
    assert read_decoder_config(transformer_folder(folder)) is None
    assert read(folder).pooling == "mean"
    assert_equals_sentence_transformers(folder, "a prompt: ")
