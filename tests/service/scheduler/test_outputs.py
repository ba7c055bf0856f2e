"""Outputs that cannot be right are refused before they reach a request."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from model.artifact.decomposition import DecomposedRows
from model.numerics.pooling import PoolingModes
from model.runtimes.contract import HeadScores
from service.engines.contract import (
    DecomposeTask,
    MapsTask,
    Output,
    Pooling,
    Target,
    TargetOutput,
    TextTask,
)
from service.errors import EngineFailed
from service.scheduler.outputs import check_outputs
from tests.service.harness import decomposition

CROSS = MapsTask(np.zeros((4, 8), np.float32), np.zeros((6, 8), np.float32), 0, (2, 0, 1))


def test_maps_are_queries_by_keys() -> None:
    check_outputs([CROSS], [Output(maps=np.zeros((3, 4, 6), np.float32))], hidden_size=8)


@pytest.mark.parametrize("shape", [(3, 6, 4), (3, 4, 4), (3, 6, 6), (2, 4, 6), (4, 6)])
def test_maps_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EngineFailed, match="wrong shape"):
        check_outputs([CROSS], [Output(maps=np.zeros(shape, np.float32))], hidden_size=8)


def test_products_of_values_are_of_every_key_and_of_two_heads() -> None:
    asked = dataclasses.replace(CROSS, values=True)
    maps, products = np.zeros((3, 4, 6), np.float32), np.zeros((6, 3, 3), np.float32)
    check_outputs([asked], [Output(maps=maps, value_products=products)], hidden_size=8)
    for wrong, reason in ((None, "left out"), (products[:4], "wrong shape")):
        with pytest.raises(EngineFailed, match=reason):
            check_outputs([asked], [Output(maps=maps, value_products=wrong)], hidden_size=8)


def test_scores_are_of_queries_and_keys_of_every_token() -> None:
    states = np.zeros((6, 8), np.float32)
    asked = MapsTask(states, states, 0, (2, 0, 1), scores=True)
    maps, vectors = np.zeros((3, 6, 6), np.float32), np.zeros((3, 6, 4), np.float32)
    good = HeadScores(vectors, vectors, maps)
    check_outputs([asked], [Output(maps=maps, head_scores=good)], hidden_size=8)
    for wrong, reason in (
        (None, "left out"),
        (HeadScores(vectors, vectors[:, :4], maps), "wrong shape"),
        (HeadScores(vectors[:2], vectors, maps), "wrong shape"),
        (HeadScores(vectors, vectors, maps[:, :4]), "wrong shape"),
        (HeadScores(vectors, vectors, maps + np.float32("nan")), "not finite"),
        (HeadScores(vectors, vectors + np.float32("inf"), maps), "not finite"),
    ):
        with pytest.raises(EngineFailed, match=reason):
            check_outputs([asked], [Output(maps=maps, head_scores=wrong)], hidden_size=8)


@pytest.mark.parametrize(("mode", "size"), [("mean", 8), (("mean",), 8), (("cls", "max"), 16)])
def test_a_pooled_vector_has_the_hidden_size_a_mode(mode: PoolingModes, size: int) -> None:
    ids = np.zeros(3, np.int64)
    task = TextTask(ids, ids, pooling=Pooling(1, mode))
    check_outputs([task], [Output(pooled=np.zeros(size, np.float32))], hidden_size=8)
    with pytest.raises(EngineFailed, match="wrong shape"):
        check_outputs([task], [Output(pooled=np.zeros(size + 1, np.float32))], hidden_size=8)


SCORED = TextTask(np.zeros(4, np.int64), np.zeros(4, np.int64), scores=(4, 3))


def test_scores_have_the_shape_that_was_asked_for() -> None:
    check_outputs([SCORED], [Output(scores=np.zeros((4, 3), np.float32))], hidden_size=8)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (4, 4)])
def test_scores_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EngineFailed, match="wrong shape"):
        check_outputs([SCORED], [Output(scores=np.zeros(shape, np.float32))], hidden_size=8)


def test_scores_that_are_missing_or_not_finite_are_refused() -> None:
    with pytest.raises(EngineFailed, match="left out"):
        check_outputs([SCORED], [Output()], hidden_size=8)
    with pytest.raises(EngineFailed, match="not finite"):
        check_outputs([SCORED], [Output(scores=np.full((4, 3), np.nan, np.float32))], 8)


AIMED = TextTask(
    np.zeros(4, np.int64),
    np.zeros(4, np.int64),
    hidden_layers=(2,),
    target=Target(np.zeros(3, np.int64), (0, 1), (0,), logprobs=True),
)


def states(*tokens: int) -> list[NDArray[np.float32]]:
    return [np.zeros((count, 8), np.float32) for count in tokens]


def test_what_a_target_was_asked_for_has_its_length_and_the_text_its_own() -> None:
    found = TargetOutput(states(3, 3), states(3), np.zeros(3, np.float32))
    check_outputs([AIMED], [Output(states(4), target=found)], hidden_size=8)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "left out"),
        (TargetOutput(states(3), states(3, 3), np.zeros(3, np.float32)), "left out"),
        (TargetOutput(states(3, 3), states(), np.zeros(3, np.float32)), "left out"),
        (TargetOutput(states(3, 3), states(3)), "left out"),
        (TargetOutput(states(3, 4), states(3), np.zeros(3, np.float32)), "wrong shape"),
        (TargetOutput(states(3, 3), states(4), np.zeros(3, np.float32)), "wrong shape"),
        (TargetOutput(states(3, 3), states(3), np.zeros(4, np.float32)), "wrong shape"),
        (TargetOutput(states(3, 3), states(3), np.full(3, -np.inf, np.float32)), "not finite"),
    ],
)
def test_wrong_answers_to_a_target_are_refused(found: TargetOutput | None, reason: str) -> None:
    with pytest.raises(EngineFailed, match=reason):
        check_outputs([AIMED], [Output(states(4), target=found)], hidden_size=8)


ROWS = decomposition(length=4, rows=2)
LAST = decomposition(length=4, rows=2, layer=1)


def rows(*parts: int, values: tuple[int, ...] | None = None) -> DecomposedRows:
    of_next = None if values is None else np.zeros(values, np.float32)
    return DecomposedRows(np.zeros(parts, np.float32), of_next)


def test_rows_of_a_decomposition_stay_as_many_and_have_values_but_after_the_last_layer() -> None:
    found = [
        Output(decomposed=rows(2, 5, 8, values=(2, 2, 5, 4))),
        Output(decomposed=rows(2, 5, 8)),
    ]
    check_outputs([ROWS, LAST], found, hidden_size=8)


@pytest.mark.parametrize(
    ("task", "found", "reason"),
    [
        (ROWS, None, "left out"),
        (ROWS, rows(2, 5, 8), "left out"),
        (LAST, rows(2, 5, 8, values=(2, 2, 5, 4)), "left out"),
        (LAST, rows(3, 5, 8), "wrong shape"),
        (ROWS, rows(2, 5, 8, values=(2, 3, 5, 4)), "wrong shape"),
        (ROWS, rows(2, 5, 8, values=(1, 2, 5, 4)), "wrong shape"),
        (LAST, DecomposedRows(np.full((2, 5, 8), np.nan, np.float32), None), "not finite"),
    ],
)
def test_wrong_rows_of_a_decomposition_are_refused(
    task: DecomposeTask, found: DecomposedRows | None, reason: str
) -> None:
    with pytest.raises(EngineFailed, match=reason):
        check_outputs([task], [Output(decomposed=found)], hidden_size=8)
