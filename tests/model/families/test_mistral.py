from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import MistralConfig, MistralModel

from model.families.registry import parse_config
from tests.model.families.parity import assert_equal_to
from tests.model.families.test_llama import TINY


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 7},
        {"sliding_window": None, "head_dim": 10},
        {"sliding_window": 7, "is_causal": False},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    encoder = assert_equal_to(MistralModel(MistralConfig(**TINY | changes)), tmp_path)
    assert bool(encoder.config.attention.windows) == (changes["sliding_window"] is not None)


def test_a_window_of_more_than_a_thousand_tokens_equals_transformers(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "max_position_embeddings": 2048, "sliding_window": 1030}
    encoder = assert_equal_to(
        MistralModel(MistralConfig(**TINY | sizes)), tmp_path, lengths=(1, 5, 1100)
    )
    assert encoder.config.attention.windows == (1029,)


def test_a_window_that_no_text_exceeds_is_left_out() -> None:
    fields = TINY | {"model_type": "mistral", "sliding_window": 4096}
    long = fields | {"max_position_embeddings": 32768}
    assert parse_config(long).attention.windows == (4095,) * 3
    short = fields | {"max_position_embeddings": 4096}
    assert parse_config(short).attention.windows == ()
