from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import BertConfig, GPT2Config, LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from model.attention.positions import rotary_frequencies
from model.config.encoder import EncoderConfig
from model.errors import ConfigError
from model.families.family import WORDS, Family, split_together
from model.families.keys import SharedKeys
from model.families.registry import (
    FAMILIES,
    parse_config,
    parse_decoder_config,
    read_config,
    read_decoder_config,
)
from model.families.rotary import rotary
from tests.model.checkpoints import TINY
from tests.model.refusals import refused

FAMILY = Family(
    config=parse_config,
    prefix="made.up.",
    outside=r"^tail\.",
    renames=((r"^brick\.(\d+)\.", r"layers.\1."), (r"^layers\.(\d+)\.w$", r"layers.\1.weight")),
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("made.up.brick.3.w", "layers.3.weight"),  # one after the other
        ("brick.3.w", "layers.3.weight"),
        ("made.up.brick.12.bias", "layers.12.bias"),
        ("model.made.up.brick.0.w", "layers.0.weight"),
        ("0.auto_model.brick.0.w", "layers.0.weight"),
        ("madeXup.brick.0.w", "madeXup.brick.0.w"),
        ("head.weight", None),
        ("made.up.head.weight", None),  # as in any family
        ("tail.weight", None),
        ("brick.0.head.weight", "layers.0.head.weight"),
        ("encoder.layer.1.self_attn.q_proj.w", "layers.1.attention.query.w"),
    ],
)
def test_keys_lose_their_prefix_and_are_renamed_in_order(key: str, expected: str | None) -> None:
    assert FAMILY.encoder_key(key) == expected


def test_maps_that_are_kept_in_one_tensor_are_taken_apart() -> None:
    rows = torch.arange(6)[:, None]
    found = split_together("layers.3.attention.together.weight", rows)
    assert [(name, part.flatten().tolist()) for name, part in found.items()] == [
        ("layers.3.attention.query.weight", [0, 1]),
        ("layers.3.attention.key.weight", [2, 3]),
        ("layers.3.attention.value.weight", [4, 5]),
    ]
    gated = split_together("layers.3.feed_forward.together.bias", rows)
    assert [*gated] == ["layers.3.feed_forward.gate.bias", "layers.3.feed_forward.expand.bias"]
    assert split_together("final_norm.weight", rows) == {"final_norm.weight": rows}


def test_a_decoders_keys_are_renamed_and_its_layers_are_its_own() -> None:
    renames = ((r"\.look\.", ".cross."),)
    tied = ("encoder.words", "shared", "decoder.words")
    family = replace(FAMILY, decoder_renames=renames, tied_words=tied)
    keys = {
        "model.decoder.brick.3.w": "layers.3.own.weight",
        "decoder.brick.3.look.w": "layers.3.cross.w",
        "decoder.layers.0.cross_norm.bias": "layers.0.cross_norm.bias",
        "decoder.last.bias": "last.bias",
        "final_logits_bias": "output_bias",
        "lm_head.weight": "output.weight",
        "made.up.shared": WORDS,
    }
    others = {"decoder.head.w", "brick.3.w", "encoder.words"}
    assert family.decoder_keys([*keys, *others]) == keys


def test_the_word_embedding_is_read_from_the_first_that_is_there() -> None:
    outside = "^shared|words$"
    tied = ("encoder.words", "shared", "decoder.words")
    family = replace(FAMILY, tied_words=tied, outside=outside)
    assert family.encoder_keys(["decoder.words", "shared", "encoder.words"]) == {
        "encoder.words": WORDS
    }
    assert family.encoder_keys(["decoder.words", "shared"]) == {"shared": WORDS}
    assert family.encoder_keys(["model.decoder.words"]) == {"model.decoder.words": WORDS}
    assert family.decoder_keys(["decoder.words", "shared"])["decoder.words"] == WORDS
    assert family.encoder_keys(["brick.0.w"]) == {"brick.0.w": "layers.0.weight"}


VALID = TINY | {"model_type": "bert"}


def refusal(fields: dict[str, Any]) -> str:
    return refused(ConfigError, "", parse_config, fields)


def test_encoders_have_no_decoder(minilm_checkpoint: Path) -> None:
    assert read_decoder_config(minilm_checkpoint) is None
    decoders = {name for name, family in FAMILIES.items() if family.decoder}
    assert decoders == {"bart", "mbart", "m2m_100", "marian", "t5", "mt5", "umt5"}
    with pytest.raises(ConfigError, match="its model_type is 'gpt2'"):
        parse_decoder_config({"model_type": "gpt2"})


def test_unknown_keys_are_ignored() -> None:
    assert parse_config(VALID | {"dropout": 0.1}) == parse_config(VALID)


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "llama", "modernbert", "deberta-v2"])
@pytest.mark.parametrize("none", [None, -1])
def test_there_may_be_no_padding_id(model_type: str, none: int | None) -> None:
    nothing = VALID | {"model_type": model_type, "pad_token_id": none}
    assert parse_config(nothing).pad_token_id == 0


def test_another_model_type_is_refused(tmp_path: Path) -> None:
    GPT2Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="its model_type is 'gpt2'; supported are"):
        read_config(tmp_path)


def test_a_config_without_a_model_type_is_refused() -> None:
    assert "model_type" in refusal(TINY)


def test_what_is_read_is_of_no_family(tiny_checkpoint: Path) -> None:
    config = read_config(tiny_checkpoint)
    assert type(config) is EncoderConfig
    assert EncoderConfig.model_validate_json(config.model_dump_json()) == config
    assert config.model_type in FAMILIES


def test_names_of_our_own_are_not_read() -> None:
    layouts = {"embeddings": {"scale": 2}, "attention": {"causal": True}, "layer": 3}
    assert parse_config(VALID | layouts) == parse_config(VALID)


def test_all_problems_are_named_together() -> None:
    fields = {"model_type": "bert", "hidden_act": "mish", "num_hidden_layers": 0}
    message = refusal(fields)
    missing = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
    for name in (*missing, "hidden_act", "num_hidden_layers"):
        assert name in message


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} holds no config.json"):
        read_config(tmp_path)


def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file holds no config"):
        read_config(tmp_path / "file")


def test_defaults_are_berts() -> None:
    keys, theirs = SharedKeys.model_validate(VALID), BertConfig(**TINY)
    shared = SharedKeys.model_fields.keys() & vars(theirs).keys()
    assert len(shared) > 10
    assert {name: getattr(keys, name) for name in shared} == {
        name: getattr(theirs, name) for name in shared
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rope_theta": 5.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
        {"rope_scaling": {"type": "default", "rope_theta": 9.0}, "rope_theta": 5.0},
    ],
    ids=str,
)
def test_the_base_is_transformers(fields: dict[str, Any]) -> None:
    theirs = Qwen3Config(**fields).rope_parameters["rope_theta"]
    assert rotary(fields, "rope_theta", 10000.0).base == theirs


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.5},
        {"type": "linear", "factor": 2.5, "rope_theta": 30.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
        {"rope_type": "yarn", "factor": 40.0, "beta_fast": 20, "beta_slow": 2, "truncate": False},
        {"rope_type": "yarn", "factor": 8.0, "attention_factor": 0.7},
        {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.4},
        {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 7},
        LLAMA3,
        LLAMA3 | {"original_max_position_embeddings": 100},
    ],
    ids=str,
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scaled_frequencies_are_transformers(scaling: dict[str, Any], key: str) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "max_position_embeddings": 3000}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, **{key: dict(scaling)}, rope_theta=500.0))
    ours = rotary({**sizes, key: scaling, "rope_theta": 500.0}, "rope_theta", 10000.0)
    frequencies = rotary_frequencies(ours.base, 32, ours.scaling)
    torch.testing.assert_close(frequencies, theirs.inv_freq)
    factor = ours.scaling.attention_factor if ours.scaling else 1
    assert factor == pytest.approx(theirs.attention_scaling)


@pytest.mark.parametrize(
    ("scaled", "named"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn needs factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "factor"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "needs low_freq_factor"),
        ({"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary"),
    ],
    ids=str,
)
def test_other_scalings_are_refused_by_name(scaled: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        rotary(scaled, "rope_theta", 1.0)


def test_one_attention_factor_is_of_all_layers() -> None:
    fields = {"model_type": "gemma3_text", "num_hidden_layers": 2, "sliding_window_pattern": 2}
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 50.0}
    with pytest.raises(ConfigError, match="attention_factor of rotary positions differs"):
        parse_config(fields | {"rope_parameters": {"full_attention": yarn}})
