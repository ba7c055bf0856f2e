"""Matches of tokens, against SimAlign, awesome-align, examples by hand, and invariants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.inference.alignment.matching import (
    VECTOR_METHODS,
    Matches,
    itermax,
    lift,
    match_cross,
    match_vectors,
    mutual,
    softmax_match,
    unit_vectors,
)
from service.inference.alignment.words import AlignedText

CASES = json.loads(Path(__file__).with_name("aligners.json").read_text(encoding="utf-8"))
"""Made by `record_aligners.py` beside this file."""
SIMILARITIES = st.tuples(st.integers(1, 7), st.integers(1, 7)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.floats(0, 1, width=32), unique=True)
)


def text_of(counts: list[int]) -> AlignedText:
    """Return a text of words with the given numbers of tokens."""
    sizes = np.array(counts)
    every = np.arange(sizes.sum())
    return AlignedText(
        "",
        np.array([(0, 1)] * len(counts), np.int32),
        every,
        np.arange(len(sizes)),
        every,
        sizes.cumsum() - sizes,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['source_pieces'])} words")
@pytest.mark.parametrize("method", VECTOR_METHODS)
def test_word_pairs_are_those_of_the_aligners(case: dict[str, Any], method: Any) -> None:
    vectors = (np.array(case[side], np.float32) for side in ("source", "target"))
    texts = (text_of(case[side]) for side in ("source_pieces", "target_pieces"))
    found = lift(match_vectors(*vectors, method), *texts)
    assert found.aligned.shape == tuple(len(case[f"{s}_pieces"]) for s in ("source", "target"))
    np.testing.assert_array_equal(np.argwhere(found.aligned), case[method])


def test_the_aligners_differ_somewhere() -> None:
    """This shows that no method can pass for another."""
    assert all(
        any(case[one] != case[other] for case in CASES)
        for one, other in (("mutual", "itermax"), ("itermax", "softmax"), ("mutual", "softmax"))
    )


@given(SIMILARITIES)
def test_sides_may_be_exchanged_and_itermax_adds_to_mutual(similarity: Any) -> None:
    found = mutual(similarity)
    assert found.any()
    assert (found.sum(axis=0) <= 1).all()
    assert (found.sum(axis=1) <= 1).all()
    np.testing.assert_array_equal(mutual(similarity.T), found.T)
    more = itermax(similarity)
    assert (more >= found).all()
    np.testing.assert_array_equal(itermax(similarity.T), more.T)
    products = softmax_match(9 * similarity, 0.1)
    np.testing.assert_array_equal(softmax_match(9 * similarity.T, 0.1).aligned, products.aligned.T)


def test_a_second_round_by_hand() -> None:
    """Row 3 and column 0 are free only of each other's kind: 0.9 of 0.8 beats the rest of row 3."""
    similarity = np.array(
        [[0.9, 0.1, 0.2], [0.1, 0.9, 0.3], [0.2, 0.1, 0.9], [0.8, 0.2, 0.7]], np.float32
    )
    np.testing.assert_array_equal(np.argwhere(mutual(similarity)), [[0, 0], [1, 1], [2, 2]])
    assert (itermax(similarity) == mutual(similarity)).all()  # no column is free
    wider = np.concatenate([similarity, np.full((4, 1), 0.05, np.float32)], axis=1)
    expected = [[0, 0], [1, 1], [2, 2], [3, 0]]
    np.testing.assert_array_equal(np.argwhere(itermax(wider)), expected)
    np.testing.assert_array_equal(itermax(wider[:2]), mutual(wider[:2]))  # of two tokens, no round


def test_softmax_by_hand() -> None:
    found = softmax_match(np.log(np.array([[3, 1], [1, 1]], np.float32)), 0.3)
    np.testing.assert_array_equal(found.aligned, [[True, False], [False, True]])
    np.testing.assert_allclose(found.scores, [[3 / 4, 1 / 3], [1 / 3, 1 / 2]], rtol=1e-6)
    apart = softmax_match(np.array([[0, 1e4], [1e4, 0]], np.float32))
    np.testing.assert_array_equal(apart.scores, [[0, 1], [1, 0]])


def test_scores_are_cosines() -> None:
    source, target = np.array([[3, 4], [0, 0]], np.float32), np.array([[-3, -4]], np.float32)
    for method in ("mutual", "itermax"):
        found = match_vectors(source, target, method)
        np.testing.assert_allclose(found.scores, [[-1], [0]], atol=1e-7)
        np.testing.assert_array_equal(found.aligned, [[False], [True]])
    assert unit_vectors(source).tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0]]


def test_each_target_has_the_source_that_it_attends_to_most() -> None:
    weights = np.array([[0.1, 0.2], [0.3, 0.2], [0.25, 0.25]], np.float32)
    found = match_cross(weights)
    np.testing.assert_array_equal(found.aligned, [[False, True, True], [True, False, False]])
    np.testing.assert_array_equal(found.scores, weights.T)


def test_lifting_takes_the_largest_score() -> None:
    """Words may share a token and have several; a plain loop is the oracle."""
    chance = np.random.default_rng(0)
    scores = chance.standard_normal((4, 5), np.float32)
    aligned = scores > 0.5
    of_source, of_target = [[0, 1], [1], [2, 3]], [[0], [0], [1, 2, 3], [4]]

    def text(owned: list[list[int]]) -> AlignedText:
        sizes = [len(one) for one in owned]
        return AlignedText(
            "",
            np.array([(0, 1)] * len(owned), np.int32),
            np.arange(5),
            np.arange(len(owned)),
            np.concatenate(owned),
            np.cumsum(sizes) - sizes,
        )

    found = lift(Matches(aligned, scores), text(of_source), text(of_target))
    for i, rows in enumerate(of_source):
        for j, columns in enumerate(of_target):
            cells = np.ix_(rows, columns)
            assert found.aligned[i, j] == aligned[cells].any()
            assert found.scores[i, j] == scores[cells].max()
