"""Configs and keys of the families of text encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GteConfig,
    GteModel,
    NomicBertConfig,
    NomicBertModel,
)

from model.attention.self_attention import SelfAttention, attention_rule
from model.checkpoint import load_checkpoint
from model.errors import CheckpointError, ConfigError
from model.families.registry import parse_config, read_config
from model.sources.headers import check_weights
from tests.model.checkpoints import TINY, edit_json
from tests.model.families.jina_bert import JinaBert
from tests.model.families.parity import SIZES, saved
from tests.model.families.test_encoder_decoders import T5_SIZES
from tests.model.families.test_encoder_parity import GEMMA3, LLAMA, MODERNBERT, QWEN3, VERSION_3
from tests.model.jina_v3 import PUBLISHED
from tests.model.picture_checkpoints import PICTURES
from tests.model.refusals import refused

FIRST_NOMIC: dict[str, Any] = {
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
GTE_FIELDS = SIZES | {"model_type": "new", "rope_theta": 20000}
NTK = {"type": "ntk", "factor": 8.0}
BUCKETS = "position_buckets {} with max_relative_positions"
Change = dict[str, Any]
REFUSED: list[tuple[Change, list[Change | tuple[Change, str]]]] = [
    (
        TINY | {"model_type": "bert"},
        [
            {"position_embedding_type": "relative_key"},
            {"is_decoder": True},
            {"add_cross_attention": True},
            {"hidden_act": "mish"},
            {"attention_score": "dot"},
            {"attention_normalizer": "entmax"},
            ({"num_attention_heads": 5}, "hidden_size 12 is not a multiple of num_attention_heads"),
            {"num_attention_heads": 0},
            {"hidden_size": -12},
            {"vocab_size": "many"},
            {"layer_norm_eps": 0},
            {"intermediate_size": 1.5},
            {"max_position_embeddings": None},
            {"pad_token_id": None, "model_type": "roberta"},
            (
                {"model_type": "modernbert", "layer_types": ["sliding_attention"]},
                "layer_types has 1 entries for 2 layers",
            ),
        ],
    ),
    (
        SIZES | VERSION_3 | {"model_type": "deberta-v2"},
        [
            *(
                (
                    {"position_buckets": buckets, "max_relative_positions": farthest}
                    | {"max_position_embeddings": 49},
                    BUCKETS.format(buckets),
                )
                for buckets, farthest in ((1, 20), (16, 9), (2, 2), (96, -1))
            ),
            {"conv_kernel_size": 3},
            {"attention_score": "additive"},
            {"norm_rel_ebd": "other"},
        ],
    ),
    (SIZES | {"model_type": "albert"}, [{"inner_group_num": 2}]),
    (SIZES | {"model_type": "mpnet"}, [{"relative_attention_num_buckets": 64}]),
    (
        SIZES | {"model_type": "roberta"},
        [({"max_position_embeddings": 2}, "max_position_embeddings: Input should be greater than")],
    ),
    (
        FIRST_NOMIC,
        [{"prenorm": True}, {"rotary_emb_fraction": 0.5}, {"rotary_scaling_factor": 2.0}],
    ),
    (
        GTE_FIELDS,
        [
            {"position_embedding_type": "absolute"},
            {"layer_norm_type": "rms_norm"},
            {"logn_attention_scale": True},
            ({"rope_scaling": NTK | {"mixed_b": 0.75}}, "mixed_b"),
        ],
    ),
    (GEMMA3 | {"model_type": "gemma3_text"}, [{"attn_logit_softcapping": 50.0}]),
    (
        QWEN3 | {"model_type": "qwen3"},
        [({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3")],
    ),
    (
        PUBLISHED | SIZES,
        [
            {"position_embedding_type": "absolute", "model_type": "jina_embeddings_v3"},
            {"rotary_emb_interleaved": True},
            {"type_vocab_size": 2},
            {"lora_rank": 0},
        ],
    ),
    (
        PICTURES | {"model_type": "dinov2_with_registers"},
        [
            ({"patch_size": [14, 16]}, "patches of 14 × 16 pixels are not square"),
            ({"image_size": 13}, "smaller than a patch of 14 pixels"),
            ({"image_size": 14 * 100}, "has 10000 patches; at most 8192 are supported"),
            ({"num_channels": 1}, "num_channels: Input should be 3"),
            {"image_size": [42]},
            {"attention_score": "cosine"},
        ],
    ),
    (
        T5_SIZES | {"model_type": "t5"},
        [
            (
                {"feed_forward_proj": "gated-mish"},
                "feed_forward_proj 'gated-mish' is not supported",
            ),
            (
                {"feed_forward_proj": "relu-gated"},
                "feed_forward_proj 'relu-gated' is not supported",
            ),
            {"relative_attention_num_buckets": 3},
            ({"relative_attention_max_distance": 6}, "relative_attention_max_distance 6 gives"),
            {"is_decoder": True},
            ({"is_encoder_decoder": False}, "is_encoder_decoder is false"),
            {"attention_score": "cosine"},
        ],
    ),
]
"""Configs, and changes that are refused, with the message if it is not the changed key's."""


@pytest.mark.parametrize(
    ("fields", "change", "named"),
    [
        pytest.param(fields, change, named, id=f"{fields['model_type']}-{change}")
        for fields, cases in REFUSED
        for case in cases
        for change, named in [case if isinstance(case, tuple) else (case, next(iter(case)))]
    ],
)
def test_another_build_is_refused_by_name(fields: Change, change: Change, named: str) -> None:
    assert named in refused(ConfigError, "", parse_config, fields | change)


@pytest.mark.parametrize("norm", ["layer_norm_q", "layer_norm_k"])
def test_a_jina_bert_with_norms_of_queries_and_keys_is_refused(tmp_path: Path, norm: str) -> None:
    JinaBert(SIZES).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    key = f"encoder.layer.1.attention.self.{norm}.weight"
    save_file(load_file(weights) | {key: torch.ones(SIZES["hidden_size"])}, weights)
    message = f"holds {key}: it is a JinaBERT that normalises queries and keys"
    config = read_config(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        check_weights(tmp_path, [weights], config)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path, config)


@pytest.mark.parametrize("key", ["rope_theta", "rotary_emb_base"])
def test_the_base_of_nomics_rotary_positions(key: str) -> None:
    own = {name: value for name, value in FIRST_NOMIC.items() if name != "rotary_emb_base"}
    assert parse_config(own | {key: 77.0}).attention.rotary_bases == (77.0,) * 3
    assert NomicBertConfig(**SIZES, rope_theta=77.0).rope_parameters["rope_theta"] == 77.0


def test_both_forms_of_keys_and_of_configs_are_read(tmp_path: Path) -> None:
    """Transformers writes the first publication's keys, and a config of its own."""
    model = NomicBertModel(NomicBertConfig(**SIZES))
    expected = load_checkpoint(saved(model, tmp_path / "first"))
    (tmp_path / "own").mkdir()
    save_file(model.state_dict(), tmp_path / "own" / "model.safetensors")
    (tmp_path / "own" / "config.json").write_text(json.dumps(FIRST_NOMIC | {"head_dim": 8}))
    first = load_file(tmp_path / "first" / "model.safetensors")
    assert "encoder.layers.0.attn.Wqkv.weight" in first
    assert "layers.0.self_attn.q_proj.weight" in model.state_dict()
    ours = load_checkpoint(tmp_path / "own")
    assert ours.config == expected.config
    for name, tensor in expected.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


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


def test_ntk_scaling_divides_the_last_frequency_by_the_factor() -> None:
    """Compute the frequencies by the published rule: base times f, and divided by f^(2/p)."""
    fields = GTE_FIELDS | {"rope_scaling": NTK, "vocab_size": 97}
    config = parse_config(fields)

    layer = SelfAttention(config, 0, attention_rule(config))
    size = config.head_size
    expected = [(8.0 * 20000) ** (-2 * i / size) / 8.0 ** (2 / size) for i in range(size // 2)]
    frequencies = layer.head_parameters({})["frequencies"][0]
    torch.testing.assert_close(frequencies, torch.tensor(expected))


def test_an_older_config_of_modernbert_is_read() -> None:
    older = MODERNBERT | {
        "model_type": "modernbert",
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 500.0,
        "local_rope_theta": 50.0,
    }
    attention = parse_config(older).attention
    assert attention.windows == (None, 6, None, 6, None)
    assert attention.rotary_bases == (500.0, 50.0, 500.0, 50.0, 500.0)
    scaled = parse_config(older | {"rope_scaling": {"type": "yarn", "factor": 4.0}}).attention
    assert {scaling and scaling.kind for scaling in scaled.rotary_scalings} == {"yarn"}


def test_a_window_that_no_text_exceeds_is_left_out() -> None:
    fields = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
    long = fields | {"max_position_embeddings": 32768}
    assert parse_config(long).attention.windows == (4095,) * 3
    short = fields | {"max_position_embeddings": 4096}
    assert parse_config(short).attention.windows == ()


def test_an_older_config_of_gemma_is_read() -> None:
    older = GEMMA3 | {"model_type": "gemma3_text", "rope_theta": 9e5, "rope_local_base_freq": 9e3}
    assert parse_config(older).attention.rotary_bases == (9e3, 9e5, 9e3)


@pytest.mark.parametrize("positions", [3000, 100_000])
def test_the_limit_is_the_models_up_to_8192(positions: int) -> None:
    fields = QWEN3 | {"model_type": "qwen3", "max_position_embeddings": positions}
    assert parse_config(fields).max_position_embeddings == min(positions, 8192)
