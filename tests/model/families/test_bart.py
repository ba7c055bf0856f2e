from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BartConfig, BartForCausalLM, BartForConditionalGeneration, BartModel

from model.errors import ConfigError
from model.families.bart import BartKeys
from model.families.registry import parse_config, parse_decoder_config, read_config
from tests.model.families.decoder_parity import SIZES, assert_pair_equal_to, decode, saved_pair
from tests.model.families.parity import randomized


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder_layerdrop": 0.5},
        {"scale_embedding": True, "activation_function": "relu", "encoder_attention_heads": 3}
        | {"decoder_attention_heads": 2, "decoder_layers": 1, "decoder_start_token_id": 0},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = BartForConditionalGeneration(BartConfig(**SIZES | changes))
    decoder = assert_pair_equal_to(model, tmp_path)
    assert decoder.config.tied_output
    assert decoder.config.output_bias


def test_an_output_map_of_its_own_is_not_tied(tmp_path: Path) -> None:
    config = BartConfig(**SIZES, tie_word_embeddings=False)
    decoder = assert_pair_equal_to(BartForConditionalGeneration(config), tmp_path)
    assert not decoder.config.tied_output


def test_the_longest_texts_end_at_the_last_position(tmp_path: Path) -> None:
    model = BartForConditionalGeneration(BartConfig(**SIZES))
    assert_pair_equal_to(model, tmp_path, ((48, 48), (3, 48)))


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


def test_defaults_are_transformers() -> None:
    keys, theirs = BartKeys(model_type="bart", decoder_start_token_id=2), BartConfig().to_dict()
    shared = keys.model_dump().keys() & theirs.keys()
    assert len(shared) > 12
    names = shared - {"architectures"}
    assert {name: getattr(keys, name) for name in names} == {name: theirs[name] for name in names}
