from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from model.attention import long_texts
from model.config.decoder import DecoderConfig
from model.decoder.layers import CrossAttention, cross_rule
from model.families.registry import parse_decoder_config
from tests.model.families.decoder_parity import SIZES, packed


def config_of(**changes: object) -> DecoderConfig:
    config = parse_decoder_config({"model_type": "bart", **SIZES, **changes})
    assert config is not None
    return config


@pytest.mark.parametrize("at_once", [1024, 5])
def test_it_equals_torchs(at_once: int) -> None:
    """PyTorch's own module has the same parameters and gets one pair at a time; also in chunks."""
    torch.manual_seed(0)
    config = config_of()
    with patch.object(long_texts, "QUERIES_AT_ONCE", at_once):
        ours = CrossAttention(config, cross_rule(config))
    theirs = torch.nn.MultiheadAttention(24, 3, batch_first=True)
    projections = (ours.query, ours.key, ours.value)
    for each in (*projections, ours.output):
        torch.nn.init.normal_(each.weight, std=0.5)
        torch.nn.init.normal_(each.bias)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([each.weight for each in projections]))
        theirs.in_proj_bias.copy_(torch.cat([each.bias for each in projections]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    lengths = ((4, 7), (11, 3), (1, 1))
    target = packed([torch.zeros(t, dtype=torch.long) for t, _ in lengths])
    source = packed([torch.zeros(s, dtype=torch.long) for _, s in lengths])
    queries, encoded = torch.randn(16, 24), torch.randn(11, 24)
    with torch.no_grad():
        found = ours.attend(queries, target, encoded, source, None)
        maps = ours.maps(queries, target, encoded, source)
        row_t = row_s = 0
        for row, (t, s) in enumerate(lengths):
            of_target = queries[None, row_t : row_t + t]
            of_source = encoded[None, row_s : row_s + s]
            expected, weights = theirs(of_target, of_source, of_source, average_attn_weights=False)
            torch.testing.assert_close(found[row_t : row_t + t], expected[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(maps[row, :, :t, :s], weights[0], atol=1e-6, rtol=0)
            row_t, row_s = row_t + t, row_s + s


def test_scores_and_normalizers_are_the_encoders() -> None:
    config = config_of(attention_score="bilinear", attention_normalizer="sparsemax")
    rule = cross_rule(config)
    assert (rule.score, rule.normalizer, rule.causal) == ("bilinear", "sparsemax", False)
    names = CrossAttention(config, rule).head_parameters()
    assert {name: each.shape[0] for name, each in names.items()} == dict.fromkeys(names, 3)
    assert {"score_weight", "query_bias"} <= names.keys()
