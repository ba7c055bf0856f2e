"""Configuration of encoders and decoders, independent of the family."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.families.registry import parse_config, parse_decoder_config
from tests.model.checkpoints import TINY

VALID = TINY | {"model_type": "bert"}


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse_config(VALID).hidden_size = 3


@pytest.mark.parametrize(("heads", "size"), [(1, 12), (3, 4), (12, 1)])
def test_heads_share_the_hidden_size(heads: int, size: int) -> None:
    fields = parse_config(VALID).model_dump() | {"num_attention_heads": heads}
    assert EncoderConfig(**fields).head_size == size


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 5},
        {"num_attention_heads": 24},
        {"hidden_size": 0},
        {"pad_token_id": -1},
        {"layer_norm_eps": 0.0},
        {"attention_normalizer": "entmax"},
    ],
    ids=str,
)
def test_what_no_encoder_can_have_is_refused(change: dict[str, Any]) -> None:
    fields = parse_config(VALID).model_dump()
    with pytest.raises(ValidationError, match=next(iter(change))):
        EncoderConfig(**fields | change)


FIELDS = {"model_type": "bart", "vocab_size": 9, "decoder_start_token_id": 8}


def test_it_comes_back_from_json() -> None:
    config = parse_decoder_config(FIELDS)
    assert config is not None
    assert DecoderConfig.model_validate_json(config.model_dump_json()) == config


def test_the_start_token_is_a_word() -> None:
    config = parse_decoder_config(FIELDS)
    assert config is not None
    fields = config.model_dump()
    assert DecoderConfig.model_validate(fields | {"start_token_id": None}).start_token_id is None
    for wrong in ({"start_token_id": 9}, {"start_token_id": -1}, {"another": 1}):
        with pytest.raises(ValidationError):
            DecoderConfig.model_validate(fields | wrong)
