from __future__ import annotations

import pytest
from pydantic import ValidationError

from model.config.decoder import DecoderConfig
from model.families.registry import parse_decoder_config

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
