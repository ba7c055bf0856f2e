"""Encoder–decoders of every family against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    BartModel,
    M2M100Config,
    MarianConfig,
    MarianMTModel,
    MT5Config,
    PreTrainedConfig,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    UMT5Config,
)
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

from model.checkpoint import load_checkpoint
from model.decoder.decoder import load_decoder
from model.errors import ConfigError
from model.families.bart import BartConfig as BartFields
from model.families.bart import BartKeys
from model.families.bart import M2M100Config as M2M100Fields
from model.families.bart import MarianConfig as MarianFields
from model.families.registry import parse_config, parse_decoder_config, read_config
from tests.model.checkpoints import edit_weights
from tests.model.families.decoder_parity import (
    LENGTHS,
    SIZES,
    assert_pair_equal_to,
    decode,
    saved_pair,
)
from tests.model.families.decoder_parity import VOCABULARY as DECODER_VOCABULARY
from tests.model.families.parity import VOCABULARY, assert_equal_to, model_of, randomized

T5_SIZES: dict[str, Any] = {
    "vocab_size": DECODER_VOCABULARY,
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
LONG = ((9, 5), (1, 1), (17, 48), (48, 2))
"""Lengths of which the longest ends at the last position."""
RELU = {"scale_embedding": True, "activation_function": "relu"}
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("Bart", {"decoder_layerdrop": 0.5}, LENGTHS),
    (
        "Bart",
        RELU
        | {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "decoder_layers": 1}
        | {"decoder_start_token_id": 0},
        LENGTHS,
    ),
    ("Bart", {"tie_word_embeddings": False}, LENGTHS),
    ("Bart", {}, ((48, 48), (3, 48))),
    ("M2M100", {}, LONG),
    ("M2M100", {"scale_embedding": False, "pad_token_id": 7, "d_model": 18}, LONG),
    ("Marian", RELU | {"pad_token_id": 50, "decoder_start_token_id": 60}, LONG),
    (
        "Marian",
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}
        | {"decoder_start_token_id": 1, "activation_function": "swish"},
        LONG,
    ),
    ("MBart", {}, LENGTHS),
    # the decoder reads a target's last token first, even if generation starts with another
    ("MBart", RELU | {"decoder_start_token_id": 2}, LENGTHS),
    ("T5", {}, LENGTHS),
    ("T5", {"d_kv": 9, "num_heads": 2, "relative_attention_num_buckets": 7}, LENGTHS),
    ("T5", {"decoder_start_token_id": 7, "num_decoder_layers": 1}, ((3, 130), (130, 3))),
    (
        "T5",
        {"feed_forward_proj": "gated-silu", "num_decoder_layers": None, "layer_norm_epsilon": 0.1},
        LENGTHS,
    ),
    ("T5", {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}, LENGTHS),
    ("T5", {"n_positions": 4096}, LENGTHS),  # long texts are attended to in parts
    ("MT5", {}, LENGTHS),
    ("UMT5", {}, ((3, 30), (30, 3))),
    ("UMT5", {"feed_forward_proj": "relu", "d_kv": 9}, ((3, 30), (30, 3))),
]
"""Families, changes of their sizes, and numbers of tokens of sources and targets."""


@pytest.mark.parametrize(("family", "changes", "lengths"), CASES, ids=str)
def test_both_halves_equal_transformers(
    family: str, changes: dict[str, Any], lengths: Any, tmp_path: Path
) -> None:
    sizes = T5_SIZES if family.endswith("T5") else SIZES
    task = "MTModel" if family == "Marian" else "ForConditionalGeneration"
    assert_pair_equal_to(model_of(family, task=task, **sizes | changes), tmp_path, lengths)


@pytest.mark.parametrize(
    "model",
    [
        lambda: M2M100Encoder(M2M100Config(**SIZES | {"vocab_size": VOCABULARY})),
        lambda: T5EncoderModel(
            T5Config(**T5_SIZES | {"vocab_size": VOCABULARY, "initializer_factor": 1.0})
        ),
    ],
    ids=["m2m_100", "t5"],
)
def test_an_encoder_alone_has_no_decoder(model: Any, tmp_path: Path) -> None:
    encoder = assert_equal_to(model(), tmp_path)
    assert load_decoder(tmp_path, encoder.config) is None


def test_a_model_without_an_output_map_has_the_word_embedding_for_it(tmp_path: Path) -> None:
    base = BartModel(BartConfig(**SIZES))
    encoder, decoder = saved_pair(base, tmp_path)
    whole = BartForConditionalGeneration.from_pretrained(tmp_path).eval()
    ids = torch.tensor([5, 9, 2])
    with torch.no_grad():
        output = decode(encoder, decoder, [(ids, ids)])
        found = decoder.logprobs(output.hidden_states[-1], ids)
        logits = whole(input_ids=ids[None], labels=ids[None]).logits[0]
    expected = logits.log_softmax(-1)[torch.arange(3), ids]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_decoder_alone_is_refused(tmp_path: Path) -> None:
    randomized(BartForCausalLM(BartConfig(**SIZES))).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is_decoder: Input should be False"):
        read_config(tmp_path)


@pytest.mark.parametrize("model_type", ["bart", "mbart", "marian", "m2m_100"])
def test_what_is_not_supported_is_refused_by_name(model_type: str) -> None:
    fields = SIZES | {"model_type": model_type}
    for change, named in (
        ({"is_encoder_decoder": False}, "is_encoder_decoder is false"),
        ({"activation_function": "mish"}, "activation_function"),
        ({"decoder_layers": 0}, "decoder_layers"),
        ({"d_model": 25}, "hidden_size 25 is not a multiple"),
    ):
        with pytest.raises(ConfigError, match=named):
            parse_config(fields | change)
    if model_type != "mbart":
        with pytest.raises(ConfigError, match="decoder_start_token_id 61 is none of 61 words"):
            parse_decoder_config(fields | {"decoder_start_token_id": 61})


def test_positions_that_no_table_is_computed_for_are_refused() -> None:
    fields = SIZES | {"model_type": "m2m_100"}
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        parse_config(fields | {"max_position_embeddings": 10**9})
    with pytest.raises(ConfigError, match="not a supported decoder: pad_token_id"):
        parse_decoder_config(fields | {"pad_token_id": None})


def test_a_position_table_that_is_there_is_read(tmp_path: Path) -> None:
    """Checkpoints of older versions contain it."""
    MarianMTModel(MarianConfig(**SIZES, decoder_start_token_id=1)).save_pretrained(tmp_path)
    computed = load_checkpoint(tmp_path).state_dict()["embeddings.position.weight"]
    assert not any("positions" in key for key in load_file(tmp_path / "model.safetensors"))
    edit_weights(tmp_path, **{"model.encoder.embed_positions.weight": computed.flip(0)})
    found = load_checkpoint(tmp_path).state_dict()["embeddings.position.weight"]
    assert torch.equal(found, computed.flip(0))


@pytest.mark.parametrize(
    ("keys", "theirs"),
    [
        (BartFields(model_type="bart"), BartConfig()),
        (M2M100Fields(model_type="m2m_100"), M2M100Config()),
        (MarianFields(model_type="marian"), MarianConfig()),
    ],
    ids=["bart", "m2m_100", "marian"],
)
def test_defaults_are_transformers(keys: BartKeys, theirs: PreTrainedConfig) -> None:
    ours, expected = keys.model_dump(by_alias=True), theirs.to_dict()
    names = ours.keys() & expected.keys() - {"architectures", "decoder_vocab_size"}
    assert len(names) > 12
    assert {name: ours[name] for name in names} == {name: expected[name] for name in names}


def test_a_bias_that_the_first_t5_left_over_is_ignored(tmp_path: Path) -> None:
    T5ForConditionalGeneration(T5Config(**T5_SIZES)).save_pretrained(tmp_path)
    left_over = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    edit_weights(tmp_path, **{left_over: torch.ones(12, 3)})
    assert load_decoder(tmp_path, load_checkpoint(tmp_path).config) is not None


@pytest.mark.parametrize(
    ("positions", "tokens"), [(None, 1024), (512, 1024), (2048, 2048), (10**9, 8192)]
)
def test_a_text_has_as_many_tokens_as_the_config_says(positions: int | None, tokens: int) -> None:
    fields = T5_SIZES | {"model_type": "t5", "n_positions": positions}
    decoder = parse_decoder_config(fields)
    assert decoder is not None
    assert parse_config(fields).max_position_embeddings == tokens
    assert decoder.layers.max_position_embeddings == tokens


@pytest.mark.parametrize(
    "theirs", [T5Config(), MT5Config(), UMT5Config()], ids=["t5", "mt5", "umt5"]
)
def test_defaults_of_t5_are_transformers(theirs: T5Config | MT5Config | UMT5Config) -> None:
    given = {"model_type": theirs.model_type}
    found, decoder = parse_config(given), parse_decoder_config(given)
    assert decoder is not None
    expected = parse_config(theirs.to_dict())
    assert found == expected
    assert decoder == parse_decoder_config(theirs.to_dict())
    assert found.hidden_act == theirs.dense_act_fn
    assert decoder.start_token_id == theirs.pad_token_id
    assert decoder.layers.num_hidden_layers == theirs.num_decoder_layers
