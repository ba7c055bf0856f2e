"""Which layers are computed for a selection, and what is taken of their maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.config import EncoderConfig
from service.engines.contract import Output
from service.inference.maps import (
    AttentionSelection,
    LayerPass,
    MapsReduction,
    TargetSelection,
    layer_passes,
)
from tests.service import plain
from tests.service.harness import CONFIG

SIX = EncoderConfig.model_validate(
    CONFIG.model_dump() | {"num_hidden_layers": 6, "num_attention_heads": 4}
)


def selection(**asked: Any) -> AttentionSelection:
    """Nothing of all layers and heads but what is asked."""
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
    alone = selection(weights=True, layers=(), heads=(), target=target)
    assert [one.kind for one in layer_passes(alone, SIX)] == ["decoder"] * 2 + ["cross"] * 2
    assert layer_passes(selection(target=target), SIX) == []


T, S = 5, 7
CROSS = np.random.default_rng(0).dirichlet(np.ones(S), (3, T)).astype(np.float32)
"""Maps `[heads, T, S]` of three heads over other keys than queries."""
SELF = np.random.default_rng(1).dirichlet(np.ones(S), (3, S)).astype(np.float32)
"""Maps `[heads, S, S]`."""


def reduced(
    maps: plain.Array, *, selected: bool = True, rollout: bool = False, **asked: Any
) -> Any:
    """What is taken of a layer's maps; the conversion doubles."""
    kind = "encoder" if maps is SELF else "cross"
    layer_pass = LayerPass(2, (0, 1, 2), selected=selected, rollout=rollout, kind=kind)
    reduction = MapsReduction(
        selection(**asked), layer_pass, text=9, separators=(3, 6), convert=lambda array: 2 * array
    )
    return reduction(Output(maps=maps))


@pytest.mark.parametrize("maps", [CROSS, SELF])
def test_whole_maps_are_converted(maps: plain.Array) -> None:
    found = reduced(maps, weights=True)
    np.testing.assert_array_equal(found.weights, 2 * maps, strict=True)
    assert found.text == 9
    assert (found.top, found.statistics, found.mean) == (None, None, None)


@pytest.mark.parametrize("maps", [CROSS, SELF])
@pytest.mark.parametrize("k", [1, 3, 100])
def test_of_the_largest_weights_both_parts_are_converted(maps: plain.Array, k: int) -> None:
    found = reduced(maps, weights=True, top_k=k)
    for ours, theirs in zip(found.top, plain.largest(maps, k), strict=True):
        np.testing.assert_array_equal(ours, 2 * theirs)
    assert found.weights is None


def test_statistics_are_of_the_maps_themselves() -> None:
    found = reduced(SELF, statistics=True)
    assert (found.weights, found.top, found.mean) == (None, None, None)
    for name, values in plain.statistics(SELF[None], (3, 6)).items():
        np.testing.assert_allclose(found.statistics[name], values[0], rtol=1e-5)


def test_statistics_of_cross_attention_are_of_its_rows() -> None:
    found = reduced(CROSS, statistics=True)
    assert found.kind == "cross"
    wanted = plain.cross_statistics(CROSS[None], (3, 6))
    assert found.statistics.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found.statistics[name], values[0], rtol=1e-5)


@pytest.mark.parametrize("maps", [CROSS, SELF])
def test_a_pass_for_the_rollout_alone_takes_the_mean_over_heads(maps: plain.Array) -> None:
    asked = {"weights": True, "statistics": True}
    found = reduced(maps, selected=False, rollout=True, **asked)
    np.testing.assert_allclose(found.mean, sum(maps.astype(np.float64)) / 3, rtol=1e-6)
    assert (found.weights, found.statistics) == (None, None)


def test_one_pass_may_serve_both() -> None:
    found = reduced(SELF, rollout=True, weights=True)
    np.testing.assert_array_equal(found.weights, 2 * SELF)
    assert found.mean.shape == (S, S)
