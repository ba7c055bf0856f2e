"""Configuration of encoders, independent of the family."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from model.config.encoder import EncoderConfig
from model.families.registry import parse_config
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
