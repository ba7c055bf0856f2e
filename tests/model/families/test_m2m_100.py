from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import M2M100Config, M2M100ForConditionalGeneration
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

from model.decoder.checkpoint import load_decoder
from model.errors import ConfigError
from model.families.m2m_100 import M2M100Config as Keys
from model.families.registry import parse_config, parse_decoder_config
from tests.model.families.decoder_parity import SIZES, assert_pair_equal_to
from tests.model.families.parity import VOCABULARY, assert_equal_to


@pytest.mark.parametrize(
    "changes", [{}, {"scale_embedding": False, "pad_token_id": 7, "d_model": 18}], ids=str
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = M2M100ForConditionalGeneration(M2M100Config(**SIZES | changes))
    decoder = assert_pair_equal_to(model, tmp_path, ((9, 5), (1, 1), (17, 48), (48, 2)))
    assert not decoder.config.output_bias


def test_an_encoder_alone_has_no_decoder(tmp_path: Path) -> None:
    config = M2M100Config(**SIZES | {"vocab_size": VOCABULARY})
    encoder = assert_equal_to(M2M100Encoder(config), tmp_path)
    assert load_decoder(tmp_path, encoder.config) is None


def test_positions_that_no_table_is_computed_for_are_refused() -> None:
    fields = SIZES | {"model_type": "m2m_100"}
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        parse_config(fields | {"max_position_embeddings": 10**9})
    with pytest.raises(ConfigError, match="not a supported decoder: pad_token_id"):
        parse_decoder_config(fields | {"pad_token_id": None})


def test_defaults_are_transformers() -> None:
    keys, theirs = Keys(model_type="m2m_100").model_dump(), M2M100Config().to_dict()
    names = keys.keys() & theirs.keys() - {"architectures"}
    assert len(names) > 12
    assert {name: keys[name] for name in names} == {name: theirs[name] for name in names}
