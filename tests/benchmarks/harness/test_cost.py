"""FLOP of a text, against torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from benchmarks.harness.cost import flop
from model.families.registry import parse_config
from tests.model.checkpoints import TINY

MINILM = TINY | {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}


@pytest.mark.parametrize("length", [1, 7, 40])
def test_cost_is_what_torch_counts(length: int):
    module = BertModel(BertConfig(**TINY, attn_implementation="eager"), add_pooling_layer=False)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        module(input_ids=torch.ones(1, length, dtype=torch.int64))
    config = parse_config({"model_type": "bert"} | TINY)
    assert flop(config, [length]) == counter.get_total_flops()
    assert flop(config, [length, length]) == 2 * flop(config, [length])


def test_cost_of_minilm_by_hand():
    config = parse_config({"model_type": "bert"} | MINILM)
    token, pair = 2 * 6 * (4 * 384**2 + 2 * 384 * 1536), 2 * 6 * 2 * 384
    assert flop(config, [10]) == 10 * token + 100 * pair
    assert flop(config, [10, 10]) == 2 * flop(config, [10])
