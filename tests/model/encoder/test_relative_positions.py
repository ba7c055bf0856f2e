from __future__ import annotations

import torch
from transformers import MPNetConfig
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from model.encoder.embeddings import RelativePositions
from tests.model.attention.test_self_attention import config_of


def test_the_bias_by_distance_equals_transformers() -> None:
    reference = MPNetEncoder(MPNetConfig(hidden_size=6, num_attention_heads=3, num_hidden_layers=1))
    buckets = {"kind": "t5", "count": 32, "max_distance": 128}
    module = RelativePositions(config_of(6, 3, attention={"bias_buckets": buckets}))
    module.bias.load_state_dict(reference.relative_attention_bias.state_dict())
    expected = reference.compute_position_bias(torch.empty(1, 40, 6))[0]
    (shared,) = module()
    table = shared["distance_bias"]
    assert table.shape == (3, 79)
    for query in range(40):
        torch.testing.assert_close(table[:, 39 - query : 79 - query], expected[:, query])


def test_most_encoders_share_nothing() -> None:
    module = RelativePositions(config_of(6, 3))
    assert not any(module())
    assert list(module.parameters()) == []
