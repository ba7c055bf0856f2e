from __future__ import annotations

import pytest
import torch
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from model.checkpoint import sinusoid_table
from model.families.registry import parse_config


@pytest.mark.parametrize("size", [64, 66])
def test_tables_equal_transformers(size: int) -> None:
    fields = {"d_model": size, "encoder_attention_heads": 1, "pad_token_id": 3}
    marian = parse_config({"model_type": "marian", **fields})
    expected = MarianSinusoidalPositionalEmbedding(1024, size).create_weight()
    found = sinusoid_table("marian", marian)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    m2m = parse_config({"model_type": "m2m_100", **fields})
    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(1024 + 4, size, 3)
    assert torch.equal(sinusoid_table("m2m_100", m2m), expected)


def test_tables_are_real_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        for kind in ("marian", "m2m_100"):
            config = parse_config({"model_type": kind, "max_position_embeddings": 5})
            assert sinusoid_table(kind, config).device.type == "cpu"
