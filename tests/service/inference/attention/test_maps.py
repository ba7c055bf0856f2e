"""Reductions of a layer's maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model.artifact.signature import MapKind
from service.engines.contract import Output
from service.inference.attention.layer_passes import LayerPass
from service.inference.attention.map_parts import MapPart
from service.inference.attention.maps import MapsReduction
from service.inference.attention.selection import ArrayName
from tests.service import plain
from tests.service.inference.attention.test_layer_passes import selection

T, S = 5, 7
CROSS = np.random.default_rng(0).dirichlet(np.ones(S), (3, T)).astype(np.float32)
"""Maps `[heads, T, S]` of three heads over other keys than queries."""
SELF = np.random.default_rng(1).dirichlet(np.ones(S), (3, S)).astype(np.float32)
"""Maps `[heads, S, S]`."""


def reduction(kind: MapKind, *include: ArrayName, factor: int = 1, **asked: Any) -> MapsReduction:
    """Return the reduction of a pass, which multiplies weights by a factor."""
    asked_for = selection(*include, **asked)
    layer_pass = LayerPass(kind, 2, (0, 1, 2), frozenset(include))
    return MapsReduction(asked_for, layer_pass, 9, (3, 6), convert=lambda array: factor * array)


def reduced(maps: plain.Array, *include: ArrayName, **asked: Any) -> Any:
    """Return the reduction of a layer's maps, with doubled weights."""
    kind: MapKind = "encoder" if maps is SELF else "cross"
    return reduction(kind, *include, factor=2, **asked)(Output(maps=maps))


@pytest.mark.parametrize("maps", [CROSS, SELF])
def test_whole_maps_are_converted(maps: plain.Array) -> None:
    found = reduced(maps, "weights")
    np.testing.assert_array_equal(found.weights, 2 * maps, strict=True)
    assert found.text == 9
    assert (found.top, found.statistics, found.mean) == (None, None, None)


@pytest.mark.parametrize("maps", [CROSS, SELF])
@pytest.mark.parametrize("k", [1, 3, 100])
def test_the_largest_weights_are_converted_and_their_indices_are_not(
    maps: plain.Array, k: int
) -> None:
    found = reduced(maps, "weights", top_k=k)
    for ours, theirs in zip(found.top, plain.largest(maps, k), strict=True):
        factor = 2 if theirs.dtype.kind == "f" else 1
        np.testing.assert_array_equal(ours, factor * theirs)
    assert found.weights is None


def test_statistics_are_of_the_maps_themselves() -> None:
    found = reduced(SELF, "stats")
    assert (found.weights, found.top, found.mean) == (None, None, None)
    for name, values in plain.statistics(SELF[None], (3, 6)).items():
        np.testing.assert_allclose(found.statistics[name], values[0], rtol=1e-5)


def test_statistics_of_cross_attention_are_of_its_rows() -> None:
    found = reduced(CROSS, "stats")
    assert found.kind == "cross"
    wanted = plain.cross_statistics(CROSS[None], (3, 6))
    assert found.statistics.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found.statistics[name], values[0], rtol=1e-5)


@pytest.mark.parametrize("maps", [CROSS, SELF])
def test_a_pass_for_the_rollout_alone_takes_the_mean_over_heads(maps: plain.Array) -> None:
    found = reduced(maps, "rollout")
    np.testing.assert_allclose(found.mean, sum(maps.astype(np.float64)) / 3, rtol=1e-6)
    assert (found.weights, found.statistics) == (None, None)


def test_one_pass_may_serve_both() -> None:
    found = reduced(SELF, "rollout", "weights")
    np.testing.assert_array_equal(found.weights, 2 * SELF)
    assert found.mean.shape == (S, S)


@pytest.mark.parametrize("maps", [CROSS, SELF])
@pytest.mark.parametrize(
    ("include", "asked"),
    [
        (["weights"], {}),
        (["weights"], {"top_k": 3}),
        (["weights"], {"top_k": 3, "part": MapPart(queries=(1, 0))}),
        (["weights"], {"part": MapPart(queries=(1,), keys=(0, 2, 3))}),
        (["weights"], {"part": MapPart(max_size=2)}),
        (["stats"], {}),
        (["weights", "rollout"], {}),
    ],
    ids=str,
)
def test_what_is_left_is_known_beforehand(
    maps: plain.Array, include: list[ArrayName], asked: dict[str, Any]
) -> None:
    of_maps = reduction("cross", *include, **asked)
    found = of_maps(Output(maps=maps))
    arrays = [found.weights, found.mean, *(found.top or ())]
    left = sum(array.nbytes for array in arrays if array is not None)
    assert of_maps.left_bytes(*maps.shape[1:]) == left
