"""Properties of a selection: its kinds of maps, and whether it has only weights."""

from __future__ import annotations

from typing import Any

import pytest

from service.inference.attention.selection import Lengths, TargetSelection
from tests.service.inference.attention.test_layer_passes import selection

TARGET = TargetSelection(("decoder", "cross"), (2, 0), (7,), logprobs=False)


def test_queries_and_keys_are_of_their_kinds() -> None:
    lengths = Lengths(7, 3)
    assert lengths.shape("encoder") == (7, 7)
    assert lengths.shape("decoder") == (3, 3)
    assert lengths.shape("cross") == (3, 7)


def test_kinds_come_in_the_order_of_a_reply() -> None:
    of_encoder = ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3))
    assert selection(target=TARGET).of_kinds == {
        "encoder": of_encoder,
        "decoder": ((2, 0), (7,)),
        "cross": ((2, 0), (7,)),
    }
    assert list(selection(target=TARGET).of_kinds) == ["encoder", "decoder", "cross"]
    assert selection(layers=(), heads=()).of_kinds == {}


@pytest.mark.parametrize(
    ("asked", "alone"),
    [
        ({"weights": True}, True),
        ({"weights": True, "target": TARGET}, True),
        ({}, False),
        *(({"weights": True, name: True}, False) for name in ("statistics", "rollout", "norms")),
        ({"weights": True, "top_k": 3}, False),
        ({"weights": True, "ablated": ((0, 0),)}, False),
        ({"weights": True, "target": TargetSelection((), (), (), logprobs=True)}, False),
    ],
)
def test_whole_maps_alone(asked: dict[str, Any], alone: bool) -> None:
    assert selection(**asked).only_weights is alone


@pytest.mark.parametrize("ablated", [{"ablated": ((0, 0),)}, {"cross_ablated": ((0, 0),)}])
def test_a_head_of_any_kind_is_ablated(ablated: dict[str, Any]) -> None:
    target = TargetSelection((), (), (), logprobs=False, **ablated)
    assert selection(target=target).ablates
    assert not selection(target=TARGET).ablates
