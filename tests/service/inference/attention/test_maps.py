"""Selections, reductions and parts of maps, and the forward passes that they need."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from model.artifact.signature import MapKind
from model.config.encoder import EncoderConfig
from service.engines.contract import Output, Pooling, TargetOutput
from service.inference.attention.map_parts import MapPart, bins, max_pooled
from service.inference.attention.maps import (
    ArrayName,
    AttentionSelection,
    LayerPass,
    LayersAndHeads,
    MapsReduction,
    layer_passes,
)
from service.inference.attention.stream import (
    AttentionStream,
    StateLayers,
    attention_task,
    state_layers,
    states_of,
)
from service.inference.encoding import PreparedTexts
from service.inference.timings import Timings
from service.scheduler.call import ANYBODY
from tests.service import plain
from tests.service.harness import CONFIG, manifest_of, tokenized

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
    (weights,) = found.arrays.values()
    np.testing.assert_array_equal(weights, 2 * maps, strict=True)
    assert (found.text, found.statistics, found.steps) == (9, {}, {})


@pytest.mark.parametrize("maps", [CROSS, SELF])
@pytest.mark.parametrize("k", [1, 3, 100])
def test_the_largest_weights_are_converted_and_their_indices_are_not(
    maps: plain.Array, k: int
) -> None:
    found = reduced(maps, "weights", top_k=k)
    prefix = "" if maps is SELF else "cross_"
    assert [*found.arrays] == [f"{prefix}attention.{name}" for name in ("indices", "values")]
    for ours, theirs in zip(found.arrays.values(), plain.largest(maps, k), strict=True):
        factor = 2 if theirs.dtype.kind == "f" else 1
        np.testing.assert_array_equal(ours, factor * theirs)


def test_statistics_are_of_the_maps_themselves() -> None:
    found = reduced(SELF, "stats")
    assert (found.arrays, found.steps) == ({}, {})
    for name, values in plain.statistics(SELF[None], (3, 6)).items():
        np.testing.assert_allclose(found.statistics[f"stats.{name}"], values[0], rtol=1e-5)


def test_statistics_of_cross_attention_are_of_its_rows() -> None:
    found = reduced(CROSS, "stats")
    wanted = plain.cross_statistics(CROSS[None], (3, 6))
    assert [*found.statistics] == [f"cross_stats.{name}" for name in wanted]
    for ours, values in zip(found.statistics.values(), wanted.values(), strict=True):
        np.testing.assert_allclose(ours, values[0], rtol=1e-5)


@pytest.mark.parametrize("maps", [CROSS, SELF])
def test_a_pass_for_the_rollout_alone_takes_the_mean_over_heads(maps: plain.Array) -> None:
    found = reduced(maps, "rollout")
    mean = found.steps["rollout"]
    np.testing.assert_allclose(mean, sum(maps.astype(np.float64)) / 3, rtol=1e-6)
    assert (found.arrays, found.statistics) == ({}, {})


def test_one_pass_may_serve_both() -> None:
    found = reduced(SELF, "rollout", "weights")
    np.testing.assert_array_equal(found.arrays["attention"], 2 * SELF)
    assert found.steps["rollout"].shape == (S, S)


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
    left = sum(array.nbytes for array in (*found.arrays.values(), *found.steps.values()))
    assert of_maps.left_bytes(*maps.shape[1:]) == left


SHAPES = [(1, 1), (1, 9), (20, 20), (96, 96), (97, 97), (7, 300), (191, 192), (193, 64), (300, 5)]


def maps_of(queries: int, keys: int) -> np.ndarray:
    generator = np.random.default_rng(queries * keys)
    return generator.dirichlet(np.full(keys, 0.1), (3, queries)).astype(np.float32)


@pytest.mark.parametrize("most", [1, 2, 7, 96, 10**9])
@pytest.mark.parametrize(("queries", "keys"), SHAPES)
def test_pooled_maps_are_torchs(queries: int, keys: int, most: int) -> None:
    """Bit for bit; and each cell is the largest weight between the tokens of its bins."""
    maps = maps_of(queries, keys)
    size = min(queries, most), min(keys, most)
    wanted = torch.nn.functional.adaptive_max_pool2d(torch.from_numpy(maps), size).numpy()
    found = max_pooled(maps, most)
    np.testing.assert_array_equal(found, wanted, strict=True)
    rows, columns = bins(queries, most), bins(keys, most)
    row, column = size[0] // 2, size[1] - 1
    (top, bottom), (left, right) = rows[row], columns[column]
    cells = maps[:, top:bottom, left:right].max(axis=(1, 2))
    np.testing.assert_array_equal(found[:, row, column], cells)
    assert (len(rows), rows[0, 0], rows[-1, 1]) == (size[0], 0, queries)


@pytest.mark.parametrize("max_size", [None, 1, 4, 50])
@pytest.mark.parametrize("keys", [None, (3,), (-1, 0, 5, -8)])
@pytest.mark.parametrize("queries", [None, (-1,), (2, 0, -3, 11, 4)])
def test_a_part_is_indexed_and_then_pooled(
    queries: tuple[int, ...] | None, keys: tuple[int, ...] | None, max_size: int | None
) -> None:
    maps, part = maps_of(12, 17), MapPart(queries, keys, max_size)
    wanted = maps if queries is None else maps[:, list(queries)]
    np.testing.assert_array_equal(part.rows(maps), wanted, strict=True)
    wanted = wanted if keys is None else wanted[:, :, list(keys)]
    if max_size is not None:
        size = [min(length, max_size) for length in wanted.shape[1:]]
        wanted = torch.nn.functional.adaptive_max_pool2d(torch.tensor(wanted), size).numpy()
    found = part.of(maps)
    np.testing.assert_array_equal(found, wanted, strict=True)
    assert found.flags.c_contiguous
    assert part.shape(12, 17) == found.shape[1:]
    assert part.chosen is (queries is not None or keys is not None)


ALONE = tokenized(5)
TEXT = dataclasses.replace(ALONE, target=tokenized(3, 1))


def one(layer: int, kind: Any) -> LayerPass:
    return LayerPass(kind, layer, (0,), frozenset({"weights"}))


def of_kinds(
    encoder: tuple[int, ...], decoder: tuple[int, ...], cross: tuple[int, ...]
) -> StateLayers:
    return {"encoder": encoder, "decoder": decoder, "cross": cross}


def test_cross_attention_needs_the_encoders_last_state() -> None:
    own = [one(4, "encoder"), one(1, "encoder"), one(1, "encoder")]
    assert state_layers(own, 6) == of_kinds((1, 4), (), ())
    crossing = [*own, one(2, "decoder"), one(1, "cross"), one(0, "cross")]
    assert state_layers(crossing, 6) == of_kinds((1, 4, 6), (2,), (0, 1))


def test_states_are_of_a_kind_and_a_layer() -> None:
    arrays = [np.full((2, 2), value, np.float32) for value in range(5)]
    output = Output(map_states=[*arrays[:2]], target=TargetOutput(arrays[2:3], arrays[3:]))
    found = states_of(of_kinds((1, 6), (2,), (0, 1)), output)
    keys = ("encoder", 1), ("encoder", 6), ("decoder", 2), ("cross", 0), ("cross", 1)
    assert [*found] == [*keys]
    assert all(own is array for own, array in zip(found.values(), arrays, strict=True))


def test_a_decoder_runs_only_where_something_of_it_is_asked() -> None:
    none, both = of_kinds((0,), (), ()), of_kinds((6,), (1,), (0,))
    assert attention_task(ALONE, none, {}, logprobs=True).target is None
    assert attention_task(TEXT, none, {}).target is None
    found = attention_task(TEXT, none, {}, logprobs=True).target
    assert found is not None
    assert (found.hidden_layers, found.cross_layers, found.logprobs) == ((), (), True)
    found = attention_task(TEXT, both, {}).target
    assert found is not None
    assert found.labels is TEXT.target.input_ids  # type: ignore[union-attr]
    assert (found.hidden_layers, found.cross_layers, found.logprobs) == ((1,), (0,), False)


SEEN = of_kinds((1,), (2,), (0,))


@pytest.mark.anyio
@pytest.mark.parametrize("of", ["encoder", "decoder", "cross"])
async def test_an_ablation_is_held_against_a_pass_without(of: MapKind) -> None:
    heads, tasks = ((1, 2),), list[Any]()
    maps: dict[MapKind, LayersAndHeads] = {kind: ((own[0],), (0,)) for kind, own in SEEN.items()}
    asked = AttentionSelection(maps, frozenset({"rollout"}), ablated={of: heads}, targets=True)

    class Submitted(PreparedTexts):
        async def submit(self, lane: Any, given: Any, *_: Any, **__: Any) -> Any:
            tasks.extend(given)
            raise LookupError

    scheduler: Any = None
    prepared = Submitted([TEXT], ANYBODY, scheduler, Timings(0, 0.0, 0.0))
    stream = AttentionStream(prepared, manifest_of(SIX, 0), asked)
    with pytest.raises(LookupError):
        await anext(stream.results())
    task, whole = tasks
    assert (task.ablated, task.target.ablated, task.target.cross_ablated) == tuple(
        heads if of == kind else () for kind in ("encoder", "decoder", "cross")
    )
    assert (whole.ablated, whole.target.ablated, whole.target.cross_ablated) == ((), (), ())
    assert (whole.map_layers, whole.target.hidden_layers, whole.target.cross_layers) == ((),) * 3
    for each in (task, whole):
        assert each.pooling == Pooling(6, "mean")
        assert each.target.logprobs


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
        (["norms"], {"layers": (4, 0)}, [4, 0], []),
        (["norms", "norm_rollout"], {}, "shared", "shared"),
        (["norm_rollout", "weights"], {"layers": (2,)}, [2], [*range(6)]),
        (["norm_rollout", "norms"], {"heads": (2,)}, [*range(6)], [*range(6)]),
    ],
)
def test_no_layer_is_computed_more_often_than_needed(
    include: list[ArrayName], asked: dict[str, Any], own: list[int] | str, whole: list[int] | str
) -> None:
    passes, rollouts = layer_passes(selection(*include, **asked), SIX), {"rollout", "norm_rollout"}
    assert all(one.values == bool(one.include & {"norms", "norm_rollout"}) for one in passes)
    if own == "shared":
        assert [(one.layer, one.include) for one in passes] == [
            (layer, set(include)) for layer in range(6)
        ]
        return
    assert layers_with(passes, "weights", "stats", "norms") == own
    assert layers_with(passes, "rollout", "norm_rollout") == whole
    for one in passes:
        assert one.include in (rollouts & set(include), set(include) - rollouts)
        assert one.heads == (HEADS if one.include & rollouts else asked.get("heads", HEADS))


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
