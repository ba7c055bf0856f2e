from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import NomicBertConfig, NomicBertModel

from model.checkpoint import load_checkpoint
from model.errors import ConfigError
from model.families.registry import parse_config
from tests.model.families.parity import SIZES, assert_equal_to, saved


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_attention_heads": 2, "hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, "type_vocab_size": 1},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(NomicBertModel(NomicBertConfig(**SIZES | changes)), tmp_path)


FIRST_PUBLISHED: dict[str, Any] = {
    "model_type": "nomic_bert",
    "vocab_size": 97,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 3,
    "n_inner": 40,
    "n_positions": 48,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "type_vocab_size": 2,
}


@pytest.mark.parametrize("key", ["rope_theta", "rotary_emb_base"])
def test_the_base_of_rotary_positions(key: str) -> None:
    own = {name: value for name, value in FIRST_PUBLISHED.items() if name != "rotary_emb_base"}
    assert parse_config(own | {key: 77.0}).attention.rotary_bases == (77.0,) * 3
    assert NomicBertConfig(**SIZES, rope_theta=77.0).rope_parameters["rope_theta"] == 77.0


def test_both_forms_of_keys_and_of_configs_are_read(tmp_path: Path) -> None:
    """Transformers writes the first publication's keys, and a config of its own."""
    model = NomicBertModel(NomicBertConfig(**SIZES))
    expected = load_checkpoint(saved(model, tmp_path / "first"))
    (tmp_path / "own").mkdir()
    save_file(model.state_dict(), tmp_path / "own" / "model.safetensors")
    (tmp_path / "own" / "config.json").write_text(json.dumps(FIRST_PUBLISHED | {"head_dim": 8}))
    first = load_file(tmp_path / "first" / "model.safetensors")
    assert "encoder.layers.0.attn.Wqkv.weight" in first
    assert "layers.0.self_attn.q_proj.weight" in model.state_dict()
    ours = load_checkpoint(tmp_path / "own")
    assert ours.config == expected.config
    for name, tensor in expected.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    "change",
    [{"prenorm": True}, {"rotary_emb_fraction": 0.5}, {"rotary_scaling_factor": 2.0}],
    ids=str,
)
def test_another_build_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        parse_config(FIRST_PUBLISHED | change)
