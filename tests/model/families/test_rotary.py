from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from transformers import ModernBertConfig, Qwen3Config

from model.families.rotary import layer_types, rotary_base, windows


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
    assert rotary_base(fields, "rope_theta", 10000.0) == theirs


@pytest.mark.parametrize(
    "scaled",
    [
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 3.0}},
        {"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 0.5}},
    ],
    ids=str,
)
def test_scaled_positions_are_refused(scaled: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        rotary_base(scaled, "rope_theta", 1.0)


@pytest.mark.parametrize("pattern", [1, 2, 3])
def test_kinds_of_layers_are_transformers(pattern: int) -> None:
    theirs = ModernBertConfig(num_hidden_layers=7, global_attn_every_n_layers=pattern)
    assert layer_types(None, 7, lambda i: i % pattern == 0) == theirs.layer_types
    assert layer_types(["full_attention"], 1, lambda _: False) == ["full_attention"]


def test_windows_are_those_of_sliding_layers() -> None:
    assert windows(["full_attention", "sliding_attention"], 5) == (None, 5)
    assert windows(["full_attention"] * 2, 5) == ()
