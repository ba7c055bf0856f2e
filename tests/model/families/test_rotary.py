from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import LlamaConfig, ModernBertConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from model.attention.positions import rotary_frequencies
from model.errors import ConfigError
from model.families.registry import parse_config
from model.families.rotary import layer_types, rotary, windows


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


@pytest.mark.parametrize("pattern", [1, 2, 3])
def test_kinds_of_layers_are_transformers(pattern: int) -> None:
    theirs = ModernBertConfig(num_hidden_layers=7, global_attn_every_n_layers=pattern)
    assert layer_types(None, 7, lambda i: i % pattern == 0) == theirs.layer_types
    assert layer_types(["full_attention"], 1, lambda _: False) == ["full_attention"]


def test_windows_are_those_of_sliding_layers() -> None:
    assert windows(["full_attention", "sliding_attention"], 5) == (None, 5)
    assert windows(["full_attention"] * 2, 5) == ()
    assert windows(["sliding_attention"], 5, longest=6) == ()
