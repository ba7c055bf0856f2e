from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.artifact.decomposition import (
    APPLIES,
    VALUE_BIAS,
    layer_keys,
    layer_shapes,
    pooled_parts,
    value_keys,
    value_shapes,
)
from model.artifact.pooling import PoolingModes, pool
from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from tests.model.decomposition.test_encoder import MODELS
from tests.model.families.parity import saved

ELSEWHERE = ("attention.query", "attention.key", "attention.position_", "attention.score")
"""Parameters that a layer's maps depend on, which are among the heads' parameters."""


@pytest.mark.parametrize("name", ["albert", "bert", "modernbert", "modernbert-biases", "gemma3"])
def test_names_and_shapes_are_those_of_the_encoder(name: str, tmp_path: Path) -> None:
    config, model, fields = MODELS[name]
    encoder: Encoder = load_checkpoint(saved(model(config(**fields)), tmp_path))
    named = dict(encoder.named_parameters())
    used: set[str] = set()
    for layer in range(encoder.config.num_hidden_layers):
        for shapes, keys in (
            (layer_shapes(encoder.config), layer_keys(encoder.config, layer)),
            (value_shapes(encoder.config), value_keys(encoder.config, layer)),
        ):
            assert {name: tuple(named[key].shape) for name, key in keys.items()} == {
                name: shapes[name] for name in keys
            }
            assert shapes.keys() - keys.keys() <= {APPLIES, VALUE_BIAS}
            used |= set(keys.values())
    ours = {
        key
        for key in named
        if key.startswith("layers.") and not key.split(".", 2)[2].startswith(ELSEWHERE)
    }
    assert used == ours
    if encoder.config.layer.order != "post_norm":
        last = value_keys(encoder.config, encoder.config.num_hidden_layers)
        assert last["attention_norm.weight"] == "final_norm.weight"


@pytest.mark.parametrize(
    "mode",
    ["mean", "cls", "max", "last", "mean_sqrt_len_tokens", "weightedmean", ("cls", "max")],
    ids=str,
)
@pytest.mark.parametrize("first", [0, 2])
def test_shares_of_a_pooled_vector_sum_to_it(mode: PoolingModes, first: int) -> None:
    rng = np.random.default_rng(0)
    shares = rng.standard_normal((5, 5, 6), np.float32)
    parts = np.concatenate([shares.sum(axis=1, keepdims=True), shares], axis=1)
    found = pooled_parts(parts, mode, first)
    expected = pool(parts[:, 0], mode, first)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    np.testing.assert_allclose(found[1:].sum(axis=0), expected, atol=1e-5)


def test_the_mean_of_shares_is_each_tokens_mean() -> None:
    parts: Any = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_allclose(pooled_parts(parts, "mean"), parts.mean(axis=0))
    assert torch.from_numpy(pooled_parts(parts, "last")).equal(torch.from_numpy(parts[1]))
