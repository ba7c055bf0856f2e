"""Names and shapes of a layer's parameters match every family's encoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.artifact.layer_parts import (
    FINAL_APPLIES,
    final_norm_applies,
    layer_parts_signature,
    parameter_keys,
    parameter_shapes,
)
from model.checkpoint import load_checkpoint
from tests.model.decomposition.test_encoder import MODELS
from tests.model.families.parity import saved


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_those_of_the_encoder(name: str, tmp_path: Path) -> None:
    config, model, fields = MODELS[name]
    encoder = load_checkpoint(saved(model(config(**fields)), tmp_path))
    config, named = encoder.config, dict(encoder.named_parameters())
    shapes = parameter_shapes(config)
    for layer in range(config.num_hidden_layers):
        keys = parameter_keys(config, layer)
        assert shapes.keys() - keys.keys() <= {FINAL_APPLIES}
        assert {each: tuple(named[key].shape) for each, key in keys.items()} == {
            each: shapes[each] for each in keys
        }
        applies = final_norm_applies(config, layer)
        assert (applies is None) == (FINAL_APPLIES not in shapes)
        if applies is not None:
            assert applies.tolist() == [layer + 1 == config.num_hidden_layers]
    inputs = [spec.name for spec in layer_parts_signature(config, {}).inputs]
    assert inputs == ["states", "head_mask", "patch", *shapes]
