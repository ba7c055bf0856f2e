"""Layers that are computed for a selection."""

from __future__ import annotations

from typing import Any

import pytest

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.inference.attention.layer_passes import LayerPass, layer_passes
from service.inference.attention.selection import (
    ArrayName,
    AttentionSelection,
    LayersAndHeads,
)
from tests.service.harness import CONFIG

SIX = EncoderConfig.model_validate(
    CONFIG.model_dump() | {"num_hidden_layers": 6, "num_attention_heads": 4}
)


LAYERS, HEADS = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3)


def selection(
    *include: ArrayName,
    layers: tuple[int, ...] = LAYERS,
    heads: tuple[int, ...] = HEADS,
    target: dict[MapKind, LayersAndHeads] | None = None,
    **asked: Any,
) -> AttentionSelection:
    """Return a selection of encoder layers and heads, all by default, and of a target's maps."""
    maps: dict[MapKind, LayersAndHeads] = {"encoder": (layers, heads)} if layers else {}
    return AttentionSelection(maps | (target or {}), frozenset(include), **asked)


def layers_with(passes: list[LayerPass], *names: ArrayName) -> list[int]:
    """Return the layers of the passes that include one of some arrays."""
    return [one.layer for one in passes if one.include.intersection(names)]


@pytest.mark.parametrize(
    ("include", "asked", "own", "whole"),
    [
        (["weights"], {}, [0, 1, 2, 3, 4, 5], []),
        (["weights"], {"layers": (4, 0)}, [4, 0], []),
        (["rollout"], {}, [], [0, 1, 2, 3, 4, 5]),
        (["rollout"], {"layers": (1,), "heads": (1,)}, [], [0, 1, 2, 3, 4, 5]),
        (["rollout", "stats"], {"layers": (1,)}, [1], [0, 1, 2, 3, 4, 5]),
        (["rollout", "weights"], {"heads": (3, 2, 1, 0)}, [*range(6)], [*range(6)]),
        (["rollout", "weights"], {}, "shared", "shared"),
        (["rollout", "stats"], {}, "shared", "shared"),
        (["rollout", "norms", "weights"], {}, "shared", "shared"),
    ],
)
def test_no_layer_is_computed_more_often_than_needed(
    include: list[ArrayName], asked: dict[str, Any], own: list[int] | str, whole: list[int] | str
) -> None:
    passes = layer_passes(selection(*include, **asked), SIX)
    if own == "shared":
        assert [(one.layer, one.include) for one in passes] == [
            (layer, set(include)) for layer in range(6)
        ]
        return
    assert layers_with(passes, "weights", "stats", "norms") == own
    assert layers_with(passes, "rollout") == whole
    for one in passes:
        assert one.include in ({"rollout"}, set(include) - {"rollout"})
        assert one.heads == (HEADS if "rollout" in one.include else asked.get("heads", HEADS))


@pytest.mark.parametrize(
    ("include", "asked", "norms", "rollouts"),
    [
        (["weights"], {}, [], []),
        (["norms"], {"layers": (4, 0)}, [4, 0], []),
        (["norms", "norm_rollout"], {}, [*range(6)], [*range(6)]),
        (["norm_rollout", "weights"], {"layers": (2,)}, [], [*range(6)]),
        (["norm_rollout", "norms"], {"heads": (2,)}, [*range(6)], [*range(6)]),
    ],
)
def test_values_are_computed_where_norms_are_wanted_and_no_more_often(
    include: list[ArrayName], asked: dict[str, Any], norms: list[int], rollouts: list[int]
) -> None:
    passes = layer_passes(selection(*include, **asked), SIX)
    assert layers_with(passes, "norms") == norms
    assert layers_with(passes, "norm_rollout") == rollouts
    assert all(one.values == bool(one.include & {"norms", "norm_rollout"}) for one in passes)
    shared = rollouts and norms and "heads" not in asked
    assert len(passes) == len(norms) + (0 if shared else len(rollouts)) + (
        len(asked.get("layers", range(6))) if "weights" in include else 0
    )


def test_a_decoders_layers_come_after_the_encoders_and_have_no_rollout() -> None:
    target: dict[MapKind, LayersAndHeads] = {
        "decoder": ((2, 0), (7, 1)),
        "cross": ((2, 0), (7, 1)),
    }
    passes = layer_passes(selection("weights", "rollout", target=target), SIX)
    assert [(one.kind, one.layer, "rollout" in one.include) for one in passes] == [
        *(("encoder", layer, True) for layer in range(6)),
        *((kind, layer, False) for kind in ("decoder", "cross") for layer in (2, 0)),
    ]
    assert {one.heads for one in passes if one.kind != "encoder"} == {(7, 1)}
    norms = layer_passes(selection("norms", "norm_rollout", target=target), SIX)
    assert [one.kind for one in norms if "norms" in one.include] == [one.kind for one in passes]
    assert [one.kind for one in norms if "norm_rollout" in one.include] == ["encoder"] * 6
    alone = selection("weights", layers=(), target=target)
    assert [one.kind for one in layer_passes(alone, SIX)] == ["decoder"] * 2 + ["cross"] * 2
    assert layer_passes(selection(target=target), SIX) == []
