"""Ablated heads as a mask."""

from __future__ import annotations

import numpy as np

from service.engines.runtime import head_mask
from tests.service.harness import CONFIG


def test_a_mask_is_zero_at_each_ablated_head_of_its_text_alone() -> None:
    mask = head_mask([(), ((1, 0), (0, 1)), ()], CONFIG)
    assert mask is not None
    expected = np.ones((3, CONFIG.num_hidden_layers, CONFIG.num_attention_heads), np.float32)
    expected[1, 1, 0] = expected[1, 0, 1] = 0
    np.testing.assert_array_equal(mask, expected, strict=True)


def test_without_ablated_heads_there_is_none() -> None:
    assert head_mask([(), ()], CONFIG) is None
