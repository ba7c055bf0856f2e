"""Builds have the sizes of their namesakes, and tables name what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig

from benchmarks.families import Beside, Found, tables
from benchmarks.harness import alone, rounding
from benchmarks.harness.builds import BUILDS
from model.artifact.manifest import Artifact
from model.families.registry import parse_config

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")


@pytest.mark.parametrize("name", BUILDS)
def test_builds_are_what_they_are_named_after(name: str):
    """The defaults of three of transformers' configs are the base models."""
    build = BUILDS[name]
    config = parse_config(build.config(5000).to_dict())
    assert (config.vocab_size, config.num_hidden_layers > 3) == (5000, True)
    if not name.endswith("of-4-layers"):
        published = AutoConfig.for_model(build.model_type)
        assert [getattr(config, size) for size in SIZES] == [
            getattr(published, size) for size in SIZES
        ]


def test_one_text_alone_and_its_rounding(checkpoint: Path, exported: Callable[..., Artifact]):
    folder = exported(checkpoint, "tiny").folder
    costs = alone.measure(folder, [16, 5, 512], 3)
    assert [cost.tokens for cost in costs] == [5, 16]  # the tiny model takes 40
    assert all(cost.ms_a_token > 0 and cost.one_head > 0 for cost in costs)
    rounded = rounding.measure(folder)
    assert [len(layers) for layers in vars(rounded).values()] == [2, 2, 2]
    assert all(0 < most < 1e-5 for layers in vars(rounded).values() for most in layers)
    found = Found(costs, Beside(12.3, 1.5, 1.0), rounded)
    lines = tables({"a name": found}).splitlines()
    assert [line.split("|")[2].strip() for line in lines if "a name" in line] == [
        *("5", "16", "12.3", "2")
    ]
