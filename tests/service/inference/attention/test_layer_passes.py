"""Layers that are computed for a selection."""

from __future__ import annotations

from typing import Any

import pytest

from model.config.encoder import EncoderConfig
from service.inference.attention.layer_passes import layer_passes
from service.inference.attention.selection import AttentionSelection, TargetSelection
from tests.service.harness import CONFIG

SIX = EncoderConfig.model_validate(
    CONFIG.model_dump() | {"num_hidden_layers": 6, "num_attention_heads": 4}
)


def selection(**asked: Any) -> AttentionSelection:
    """Return a selection of all layers and heads, with only the requested results."""
    every: dict[str, Any] = {"layers": tuple(range(6)), "heads": (0, 1, 2, 3), "ablated": ()}
    nothing = {"weights": False, "statistics": False, "rollout": False, "top_k": None}
    return AttentionSelection(**every | nothing | asked)


@pytest.mark.parametrize(
    ("asked", "own", "whole"),
    [
        ({"weights": True}, [0, 1, 2, 3, 4, 5], []),
        ({"weights": True, "layers": (4, 0)}, [4, 0], []),
        ({"rollout": True}, [], [0, 1, 2, 3, 4, 5]),
        ({"rollout": True, "layers": (1,), "heads": (1,)}, [], [0, 1, 2, 3, 4, 5]),
        ({"rollout": True, "statistics": True, "layers": (1,)}, [1], [0, 1, 2, 3, 4, 5]),
        ({"rollout": True, "weights": True, "heads": (3, 2, 1, 0)}, [*range(6)], [*range(6)]),
        ({"rollout": True, "weights": True}, "shared", "shared"),
        ({"rollout": True, "statistics": True}, "shared", "shared"),
        ({"rollout": True, "norms": True, "weights": True}, "shared", "shared"),
    ],
)
def test_no_layer_is_computed_more_often_than_needed(
    asked: dict[str, Any], own: list[int] | str, whole: list[int] | str
) -> None:
    passes = layer_passes(selection(**asked), SIX)
    if own == "shared":
        assert [(one.layer, one.selected, one.rollout) for one in passes] == [
            (layer, True, True) for layer in range(6)
        ]
        return
    assert [one.layer for one in passes if one.selected] == own
    assert [one.layer for one in passes if one.rollout] == whole
    assert all(one.selected != one.rollout for one in passes)
    assert all(one.heads == (0, 1, 2, 3) for one in passes if one.rollout)
    assert all(one.heads == selection(**asked).heads for one in passes if one.selected)


@pytest.mark.parametrize(
    ("asked", "norms", "rollouts"),
    [
        ({"weights": True}, [], []),
        ({"norms": True, "layers": (4, 0)}, [4, 0], []),
        ({"norms": True, "norm_rollout": True}, [*range(6)], [*range(6)]),
        ({"norm_rollout": True, "weights": True, "layers": (2,)}, [], [*range(6)]),
        ({"norm_rollout": True, "norms": True, "heads": (2,)}, [*range(6)], [*range(6)]),
    ],
)
def test_values_are_computed_where_norms_are_wanted_and_no_more_often(
    asked: dict[str, Any], norms: list[int], rollouts: list[int]
) -> None:
    passes = layer_passes(selection(**asked), SIX)
    assert [one.layer for one in passes if one.norms] == norms
    assert [one.layer for one in passes if one.norm_rollout] == rollouts
    assert all(one.values == (one.norms or one.norm_rollout) for one in passes)
    assert not any(one.rollout for one in passes)
    shared = "norm_rollout" in asked and norms and "heads" not in asked
    assert len(passes) == len(norms) + (0 if shared else len(rollouts)) + (
        len(asked.get("layers", range(6))) if asked.get("weights") else 0
    )


def test_a_decoders_layers_come_after_the_encoders_and_have_no_rollout() -> None:
    target = TargetSelection(("decoder", "cross"), (2, 0), (7, 1), logprobs=False)
    passes = layer_passes(selection(weights=True, rollout=True, target=target), SIX)
    assert [(one.kind, one.layer, one.rollout) for one in passes] == [
        *(("encoder", layer, True) for layer in range(6)),
        *((kind, layer, False) for kind in ("decoder", "cross") for layer in (2, 0)),
    ]
    assert {one.heads for one in passes if one.kind != "encoder"} == {(7, 1)}
    norms = layer_passes(selection(norms=True, norm_rollout=True, target=target), SIX)
    assert [one.kind for one in norms if one.norms] == [one.kind for one in passes]
    assert [one.kind for one in norms if one.norm_rollout] == ["encoder"] * 6
    alone = selection(weights=True, layers=(), heads=(), target=target)
    assert [one.kind for one in layer_passes(alone, SIX)] == ["decoder"] * 2 + ["cross"] * 2
    assert layer_passes(selection(target=target), SIX) == []
