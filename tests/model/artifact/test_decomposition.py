from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.decomposition import (
    APPLIES,
    VALUE_BIAS,
    layer_keys,
    layer_shapes,
    value_keys,
    value_shapes,
)
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
