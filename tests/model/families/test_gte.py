from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GteConfig, GteForSequenceClassification, GteModel

from model.attention.self_attention import SelfAttention, attention_rule
from model.checkpoint import load_checkpoint
from model.errors import ConfigError
from model.families.gte import GTE
from model.families.registry import parse_config
from tests.model.checkpoints import edit_json
from tests.model.families.parity import SIZES, assert_equal_to, saved

PUBLISHED = SIZES | {"model_type": "new", "rope_theta": 20000}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"type_vocab_size": 0},
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    assert_equal_to(GteModel(GteConfig(**SIZES | changes)), tmp_path)


@pytest.mark.parametrize("prefix", ["new.", "gte."])
def test_separate_maps_and_prefixes_make_the_same_encoder(tmp_path: Path, prefix: str) -> None:
    expected = load_checkpoint(saved(GteModel(GteConfig(**SIZES)), tmp_path)).state_dict()
    separate: dict[str, torch.Tensor] = {"classifier.weight": torch.ones(2)}
    for key, tensor in load_file(tmp_path / "model.safetensors").items():
        if "qkv_proj" in key:
            for role, part in zip("qkv", tensor.chunk(3), strict=True):
                separate[prefix + key.replace("qkv", role)] = part.contiguous()
        else:
            separate[prefix + key] = tensor
    save_file(separate, tmp_path / "model.safetensors")
    edit_json(tmp_path / "config.json", model_type="new", pack_qkv=False, rope_theta=160000)
    found = load_checkpoint(tmp_path).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_heads_are_left_out() -> None:
    keys = GteForSequenceClassification(GteConfig(**SIZES)).state_dict().keys()
    left_out = keys - GTE.encoder_keys(keys).keys()
    assert left_out == {
        *("gte.pooler.dense.weight", "gte.pooler.dense.bias"),
        *("classifier.weight", "classifier.bias"),
    }


def test_ntk_scaling_divides_the_last_frequency_by_the_factor() -> None:
    """Compute the frequencies by the published rule: base times f, and divided by f^(2/p)."""
    fields = PUBLISHED | {"rope_scaling": {"type": "ntk", "factor": 8.0}, "vocab_size": 97}
    config = parse_config(fields)

    layer = SelfAttention(config, 0, attention_rule(config))
    size = config.head_size
    expected = [(8.0 * 20000) ** (-2 * i / size) / 8.0 ** (2 / size) for i in range(size // 2)]
    frequencies = layer.head_parameters({})["frequencies"][0]
    torch.testing.assert_close(frequencies, torch.tensor(expected))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"position_embedding_type": "absolute"}, "position_embedding_type"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type"),
        ({"logn_attention_scale": True}, "logn_attention_scale"),
        ({"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.75}}, "mixed_b"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_config(PUBLISHED | change)
