from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

from model.checkpoint import load_checkpoint
from model.decoder.checkpoint import load_decoder
from model.errors import ConfigError
from model.families.registry import parse_config, parse_decoder_config
from model.families.t5 import read_config
from tests.model.checkpoints import edit_weights
from tests.model.families.decoder_parity import VOCABULARY, assert_pair_equal_to
from tests.model.families.parity import assert_equal_to

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 4,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
    "initializer_factor": 0.2,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "d_kv": 9,
            "num_heads": 2,
            "decoder_start_token_id": 7,
            "relative_attention_num_buckets": 7,
        },
        {"feed_forward_proj": "gated-silu", "num_decoder_layers": None, "layer_norm_epsilon": 0.1},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = T5ForConditionalGeneration(T5Config(**SIZES | changes))
    decoder = assert_pair_equal_to(model, tmp_path)
    assert decoder.config.output_scale == 24**-0.5


def test_version_1_1_has_an_output_map_of_its_own(tmp_path: Path) -> None:
    config = T5Config(**SIZES, tie_word_embeddings=False, feed_forward_proj="gated-gelu")
    model = T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 24))
    decoder = assert_pair_equal_to(model, tmp_path)
    assert not decoder.config.tied_output
    assert decoder.config.output_scale == 1.0


def test_mt5_equals_transformers(tmp_path: Path) -> None:
    assert_pair_equal_to(MT5ForConditionalGeneration(MT5Config(**SIZES)), tmp_path)


@pytest.mark.parametrize("changes", [{}, {"feed_forward_proj": "relu", "d_kv": 9}], ids=str)
def test_umt5_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = UMT5ForConditionalGeneration(UMT5Config(**SIZES | changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.add_(torch.randn_like(parameter))
    decoder = assert_pair_equal_to(model, tmp_path, ((3, 30), (30, 3)))
    biases = [layer["distance_bias"] for layer in decoder.relative()]
    assert not torch.equal(biases[0], biases[1])


def test_an_encoder_alone_has_no_decoder(tmp_path: Path) -> None:
    config = T5Config(**SIZES | {"vocab_size": 97, "initializer_factor": 1.0})
    encoder = assert_equal_to(T5EncoderModel(config), tmp_path)
    assert load_decoder(tmp_path, encoder.config) is None


def test_a_bias_that_the_first_t5_left_over_is_ignored(tmp_path: Path) -> None:
    T5ForConditionalGeneration(T5Config(**SIZES)).save_pretrained(tmp_path)
    left_over = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    edit_weights(tmp_path, **{left_over: torch.ones(12, 3)})
    assert load_decoder(tmp_path, load_checkpoint(tmp_path).config) is not None


def test_distances_beyond_the_last_bucket_share_it(tmp_path: Path) -> None:
    model = T5ForConditionalGeneration(T5Config(**SIZES | {"num_decoder_layers": 1}))
    assert_pair_equal_to(model, tmp_path, ((3, 130), (130, 3)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj 'gated-mish' is not supported"),
        ({"feed_forward_proj": "relu-gated"}, "feed_forward_proj 'relu-gated' is not supported"),
        ({"relative_attention_num_buckets": 3}, "relative_attention_num_buckets"),
        ({"relative_attention_max_distance": 6}, "relative_attention_max_distance 6 gives"),
        ({"is_decoder": True}, "is_decoder"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is false"),
        ({"attention_score": "cosine"}, "attention_score"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_config(SIZES | {"model_type": "t5"} | change)


@pytest.mark.parametrize(
    ("positions", "tokens"), [(None, 1024), (512, 1024), (2048, 2048), (10**9, 8192)]
)
def test_a_text_has_as_many_tokens_as_the_config_says(positions: int | None, tokens: int) -> None:
    fields = SIZES | {"model_type": "t5", "n_positions": positions}
    decoder = parse_decoder_config(fields)
    assert decoder is not None
    assert parse_config(fields).max_position_embeddings == tokens
    assert decoder.layers.max_position_embeddings == tokens


def test_long_texts_are_attended_to_in_parts(tmp_path: Path) -> None:
    model = T5ForConditionalGeneration(T5Config(**SIZES, n_positions=4096))
    decoder = assert_pair_equal_to(model, tmp_path)
    assert decoder.config.layers.max_position_embeddings == 4096


@pytest.mark.parametrize(
    "theirs", [T5Config(), MT5Config(), UMT5Config()], ids=["t5", "mt5", "umt5"]
)
def test_defaults_are_transformers(theirs: T5Config | MT5Config | UMT5Config) -> None:
    given = {"model_type": theirs.model_type}
    found, decoder = parse_config(given), parse_decoder_config(given)
    assert decoder is not None
    expected = parse_config(theirs.to_dict())
    assert found == expected == read_config(given)
    assert decoder == parse_decoder_config(theirs.to_dict())
    assert found.hidden_act == theirs.dense_act_fn
    assert decoder.start_token_id == theirs.pad_token_id
    assert decoder.layers.num_hidden_layers == theirs.num_decoder_layers
