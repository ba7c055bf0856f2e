"""Order of a layer's parts, against their formulas; other tests compare whole layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention.self_attention import attention_rule
from model.attention.weights import Heads, attention_weights, some_heads
from model.encoder.layers import LAYERS, Layer
from model.numerics.batch import pack
from model.packing import PackedBatch
from tests.model.attention.test_self_attention import config_of

BATCH = PackedBatch.of(pack([([1, 2, 3], [0, 0, 0]), ([4], [0])]))


def layer_of(order: str, number: int = 1, **layout: Any) -> Layer:
    config = config_of(6, 3, intermediate_size=5, layer={"order": order, **layout})
    layer = LAYERS[order](config, number, attention_rule(config))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


def parts(layer: Any, x: Tensor) -> Tensor:
    return layer.attention.attend(x, BATCH, None, {})


FORMULAS = {
    "post_norm": lambda layer, x: layer.attention_norm(x + parts(layer, x)),
    "pre_norm": lambda layer, x: x + parts(layer, layer.attention_norm(x)),
    "sandwich_norm": lambda layer, x: (
        x + layer.attended_norm(parts(layer, layer.attention_norm(x)))
    ),
}
SECOND = {
    "post_norm": lambda layer, x: layer.output_norm(x + layer.feed_forward(x)),
    "pre_norm": lambda layer, x: x + layer.feed_forward(layer.feed_forward_norm(x)),
    "sandwich_norm": lambda layer, x: (
        x + layer.output_norm(layer.feed_forward(layer.feed_forward_norm(x)))
    ),
}


@pytest.mark.parametrize("order", LAYERS)
@torch.no_grad()
def test_a_layer_is_its_formula(order: str) -> None:
    layer, x = layer_of(order), torch.randn(4, 6)
    expected = SECOND[order](layer, FORMULAS[order](layer, x))
    torch.testing.assert_close(layer(x, BATCH, None, {}), expected)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("order", "layout"),
    [
        ("post_norm", {}),
        ("pre_norm", {}),
        ("pre_norm", {"first_attention_norm": False}),
        ("pre_norm", {"norm": "rms_norm"}),
        ("sandwich_norm", {"norm_bias": False}),
    ],
    ids=str,
)
@torch.no_grad()
def test_maps_follow_from_a_layers_input_and_its_heads_parameters(
    order: str, layout: dict[str, Any], number: int
) -> None:
    layer, x = layer_of(order, number, **layout), torch.randn(4, 6)
    parameters = some_heads(layer.head_parameters({}), [2], 3)
    assert {len(tensor) for tensor in parameters.values()} == {1}
    heads = Heads.from_parameters(parameters, layer.attention.rule)
    found = attention_weights(heads, x[None, :3], x[None, :3])
    torch.testing.assert_close(found[0, 0], layer.maps(x, BATCH, {})[0, 2])
